"""One description of a learning problem, for the simulator, the server and the client."""

from cdfl.problems.problem import Problem
from cdfl.problems.task import Progress, Task

__all__ = ["Problem", "Progress", "Task"]
