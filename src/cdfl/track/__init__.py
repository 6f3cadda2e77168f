"""Trackers that people already use, as readers of events: TensorBoard, MLflow, Weights & Biases."""

from cdfl.track.trackers import TRACKERS, Tracker, open_trackers

__all__ = ["TRACKERS", "Tracker", "open_trackers"]
