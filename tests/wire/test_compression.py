"""Compression, and limits on what is decompressed."""

import io
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cdfl import wire


def test_decompressing_gives_the_same_bytes():
    data = bytes(range(256)) * 5000
    assert wire.decompress_bytes(wire.compress(data), len(data)) == data


def test_a_bomb_stops_at_the_limit():
    bomb = wire.compress(bytes(20_000_000))
    assert len(bomb) < 20_000

    class Counter(io.BytesIO):
        most = 0

        def write(self, piece):
            Counter.most += len(piece)
            return len(piece)

    with pytest.raises(wire.TooLargeError, match="more than 3000000 bytes; expected at most that"):
        wire.decompress(io.BytesIO(bomb), Counter(), limit=3_000_000)
    assert Counter.most <= 3_000_000


def test_a_large_window_is_refused():
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, enable_ldm=True)
    writer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    data = writer.compress(bytes(1000)) + writer.flush()
    with pytest.raises(wire.MalformedError, match="not valid zstd"):
        wire.decompress_bytes(data, 10_000)


@given(st.binary(max_size=100))
def test_any_bytes(data):
    with suppress(wire.MalformedError, wire.TooLargeError):
        wire.decompress_bytes(data, 1000)
