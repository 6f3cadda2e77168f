"""The limits of a server: sizes, rates and times."""

from dataclasses import dataclass, fields

MEGABYTE = 10**6


@dataclass(frozen=True)
class Limits:
    """Every limit of a server. Sizes are in bytes, times in seconds."""

    body_bytes: int | None = (
        None  # largest upload, before and after decompression; None for what the model needs, plus slack
    )
    queue: int = 512  # at most this many uploads wait to be evaluated and applied
    queue_seconds: float = 30.0  # uploads are refused if they would wait longer
    queue_bytes: int = 2048 * MEGABYTE  # total size of the models in the queue
    requests_per_second: float = 20.0  # average rate of one client
    burst: int = 40  # one client may send this many requests at once
    clients: int = 100_000  # newcomers are refused once this many clients are known
    connections: int = 4096  # if more are open, the one that has been idle longest is closed
    handshakes: int = 256  # at once; beyond them, the oldest of the address that has most is given up
    handshakes_per_second: float = 100.0  # of TLS, of all peers; each costs the processor a millisecond or more
    handshake_seconds: float = 10.0
    strangers_per_second: float = 500.0  # requests of all connections on which no client has authenticated
    arriving_bytes: int = 8192 * MEGABYTE  # uploads on their way to the disk; beyond it, the slowest is given up
    reply_bytes: int = 512 * MEGABYTE  # models that are being sent; beyond it, the one read least lately is given up
    streams: int = 64  # event streams of clients
    client_streams: int = 4  # of one client
    operator_streams: int = 8  # of the operator, beside those
    log_lines_per_second: float = 5.0
    idle_seconds: float = 30.0  # a connection without a complete request header is closed after this time
    stall_seconds: float = 30.0  # a body may pause this long, in either direction
    least_rate: float = 2_000.0  # least average rate of a body in bytes a second, after `stall_seconds`

    def __post_init__(self) -> None:
        """Refuse limits that nothing could pass."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"the limit {field.name} is {value!r}; expected a number above 0")

    def queue_of(self, model_bytes: int) -> int:
        """Return how many uploads of this size may wait: at least the one that is processed and the next."""
        return max(2, min(self.queue, self.queue_bytes // max(1, model_bytes)))
