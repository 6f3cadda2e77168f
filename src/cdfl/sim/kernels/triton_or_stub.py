# mypy: ignore-errors
"""Triton where it is installed; elsewhere a stand-in with which the kernels can be imported, though not run."""

try:
    import triton.language as tl
    from triton import jit
except ImportError:  # PyTorch for CPUs comes without it

    def jit(function):
        """Leave a kernel as it is."""
        return function

    class tl:  # noqa: N801
        """What is named outside of the kernels' bodies."""

        constexpr = None
