# mypy: ignore-errors
"""Triton if it is installed; otherwise a stub with which kernels can be imported but not run."""

try:
    import triton.language as tl
    from triton import jit
except ImportError:  # PyTorch for CPUs comes without it

    def jit(function):
        """Return the kernel unchanged."""
        return function

    class tl:  # noqa: N801
        """The names used outside of kernel bodies."""

        constexpr = None
