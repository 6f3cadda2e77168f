"""Client-driven federated learning on one machine, in virtual time."""

from cdfl.sim.runner import Run, RunConfig, configure, run, run_events

__all__ = ["Run", "RunConfig", "configure", "run", "run_events"]
