"""Evaluate models on a Ray cluster instead of in the server's process."""
