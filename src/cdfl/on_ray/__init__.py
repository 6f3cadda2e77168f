"""Workers on a Ray cluster, which is optional: `pip install 'cdfl[ray]'`."""

from cdfl.on_ray.connection import RayEngine

__all__ = ["RayEngine"]
