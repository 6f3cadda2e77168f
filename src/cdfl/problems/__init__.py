"""One description of a learning problem, for the simulator, the server and the client; and its instances."""

from cdfl.problems.problem import Problem
from cdfl.problems.problem_instance import ProblemInstance, Progress

__all__ = ["Problem", "ProblemInstance", "Progress"]
