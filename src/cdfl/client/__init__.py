"""The client of a CDFL server: trains on local data, decides when to upload, and works offline."""

from cdfl.client.async_client import AsyncClient
from cdfl.client.client import Client, Reply
from cdfl.client.connection import Retry
from cdfl.client.data_stream import StreamFollower, Turn
from cdfl.client.errors import ClientError, DivergedError, ServerAwayError, StateError, UntrustedError
from cdfl.client.experts import Seen
from cdfl.client.flower import FlowerClient
from cdfl.client.privacy import Privacy

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "DivergedError",
    "FlowerClient",
    "Privacy",
    "Reply",
    "Retry",
    "Seen",
    "ServerAwayError",
    "StateError",
    "StreamFollower",
    "Turn",
    "UntrustedError",
]
