"""Zstandard with a limit on the decompressed size: a small body can expand to a huge one."""

import io
from types import ModuleType
from typing import BinaryIO

from cdfl.wire.errors import MalformedError, TooLargeError, UnsupportedError

MAX_WINDOW = 2**23  # bytes of memory that a sender may demand (RFC 9659)
PIECE = 2**20


def compress(data: bytes | memoryview, level: int = 3) -> bytes:
    """Return a body for `Content-Encoding: zstd`."""
    packed: bytes = _zstandard().ZstdCompressor(level=level).compress(data)
    return packed


def decompress(source: BinaryIO, sink: BinaryIO, limit: int) -> int:
    """Decompress a stream and return the number of bytes written; refuse more than `limit`."""
    zstandard = _zstandard()
    written = 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(source, closefd=False) as reader:
            while piece := reader.read(PIECE):
                written += len(piece)
                if written > limit:
                    raise TooLargeError(f"the decompressed body has more than {limit} bytes; expected at most that")
                sink.write(piece)
    except zstandard.ZstdError as error:
        raise MalformedError(f"the body is not valid zstd: {error}") from None
    return written


def decompress_bytes(data: bytes, limit: int) -> bytes:
    """Decompress a body in memory.

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
        raise UnsupportedError("zstd needs the package zstandard: pip install zstandard, or do not compress") from None
    return zstandard
