"""What a benchmark ran on; stored beside its numbers."""

from cdfl.paper.machine import commit, machine

__all__ = ["commit", "machine"]
