"""Trackers that people already use, as readers of events: TensorBoard, MLflow, Weights & Biases."""

from cdfl.track.trackers import TRACKERS, Tracker, Tracking, open_tracker, open_trackers

__all__ = ["TRACKERS", "Tracker", "Tracking", "open_tracker", "open_trackers"]
