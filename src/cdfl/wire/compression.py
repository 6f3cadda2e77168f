"""Zstandard, with a cap on what comes out: a small body may claim to be a large one."""

import io
from types import ModuleType
from typing import BinaryIO

from cdfl.wire.errors import MalformedError, TooLargeError, UnsupportedError

# What RFC 9659 lets a sender ask of a receiver: more memory than this is refused.
MAX_WINDOW = 2**23
PIECE = 2**20


def compress(data: bytes | memoryview, level: int = 3) -> bytes:
    """A body for `Content-Encoding: zstd`."""
    packed: bytes = _zstandard().ZstdCompressor(level=level).compress(data)
    return packed


def decompress(source: BinaryIO, sink: BinaryIO, limit: int) -> int:
    """Unpack a stream piece by piece; returns the bytes written, and stops at the first beyond `limit`."""
    zstandard = _zstandard()
    written = 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(source, closefd=False) as reader:
            while piece := reader.read(PIECE):
                written += len(piece)
                if written > limit:
                    raise TooLargeError(f"the body is more than {limit} bytes once decompressed; expected at most that")
                sink.write(piece)
    except zstandard.ZstdError as error:
        raise MalformedError(f"the body is not valid zstd: {error}") from None
    return written


def decompress_bytes(data: bytes, limit: int) -> bytes:
    """Unpack a body that is in memory.

    >>> decompress_bytes(compress(b"model" * 100), limit=1000)[:5]
    b'model'
    """
    sink = io.BytesIO()
    decompress(io.BytesIO(data), sink, limit)
    return sink.getvalue()


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UnsupportedError("zstd needs the package zstandard: pip install zstandard; or send without it") from None
    return zstandard
