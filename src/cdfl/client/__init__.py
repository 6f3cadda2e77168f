"""The client of the service: trains where the data are, decides when, loses nothing on a bad network."""

from cdfl.client.aio import AsyncClient
from cdfl.client.client import Client, Reply
from cdfl.client.errors import ClientError, DivergedError, ServerAwayError, StateError
from cdfl.client.flower import FlowerClient
from cdfl.client.privacy import Privacy
from cdfl.client.transport import InProcess, Retry
from cdfl.client.watch import Seen, Watcher

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "DivergedError",
    "FlowerClient",
    "InProcess",
    "Privacy",
    "Reply",
    "Retry",
    "Seen",
    "ServerAwayError",
    "StateError",
    "Watcher",
]
