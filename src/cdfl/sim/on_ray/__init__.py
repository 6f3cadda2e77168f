"""Run simulations on a Ray cluster."""
