"""A problem and the clients that a simulation learns it with; a run adds an algorithm and a seed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from cdfl.problems import Problem

CLIENTS_EACH = 10  # clients for each cluster, if a problem does not say how many
UPLOADS_EACH = 15  # uploads of each client


@dataclass(frozen=True, kw_only=True, repr=False)
class Scenario(Problem):
    """A problem, the number of clients, and how often they upload."""

    num_clients: int
    num_uploads: int  # of all clients together
    summary: str = ""
    paper_row: str | None = None  # for the preset `paper`: a key of the paper's parameter table

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_clients < 1 or self.num_uploads < 1:
            raise ValueError(
                f"{self.name}: {self.num_clients} clients and {self.num_uploads} uploads; expected at least 1 of each"
            )

    @classmethod
    def of(cls, problem: Problem, num_clients: int | None = None, num_uploads: int | None = None) -> Scenario:
        """Return a problem with clients: the given numbers of them and of uploads, or its own, or the usual ones."""
        given = {"num_clients": num_clients, "num_uploads": num_uploads}
        changes: dict[str, Any] = {name: number for name, number in given.items() if number is not None}
        if isinstance(problem, Scenario):
            return replace(problem, **changes) if changes else problem
        clients = num_clients or CLIENTS_EACH * problem.num_clusters
        own = {field.name: getattr(problem, field.name) for field in fields(problem)}
        return cls(**own | {"num_clients": clients, "num_uploads": UPLOADS_EACH * clients} | changes)
