"""Client-driven federated learning on one machine, in virtual time."""

from cdfl.sim.runner import RunConfig, compare_events, configure, run_events

__all__ = ["RunConfig", "compare_events", "configure", "run_events"]
