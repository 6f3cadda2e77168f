"""Run simulations on a Ray cluster: an optional engine, `pip install 'cdfl[ray]'`."""

from cdfl.sim.on_ray.connection import RayEngine

__all__ = ["RayEngine"]
