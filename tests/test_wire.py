"""The codec: what it writes, safetensors reads; what it reads, it reads strictly."""

import io
import json
import re
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import nn

from cdfl import wire
from cdfl.core import Layout, flatten


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


LAYOUT = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))


def body_of(tensors: dict, data: bytes, length: int | None = None) -> bytes:
    """A body with any header one likes."""
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def parts_of(body: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack("<Q", body[:8])
    return json.loads(body[8 : 8 + length]), body[8 + length :]


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", wire.DTYPES)
    def test_the_library_reads_what_we_write(self, model, dtype):
        vector = flatten(model)
        body = wire.encode_model(vector, LAYOUT, dtype)
        assert len(body) == wire.body_size(LAYOUT, dtype)
        read = safetensors_load(body)
        assert set(read) == set(LAYOUT.names)
        for name, view in LAYOUT.views(vector).items():
            assert read[name].dtype == wire.DTYPES[dtype]
            assert torch.equal(read[name], view.to(wire.DTYPES[dtype]))

    @pytest.mark.parametrize("dtype", wire.DTYPES.values())
    def test_we_read_what_the_library_writes_in_its_own_order(self, model, dtype):
        vector = flatten(model)
        named = {name: view.clone().to(dtype) for name, view in LAYOUT.views(vector).items()}
        body = safetensors_save(named, metadata={"format": "pt"})
        assert torch.equal(wire.decode_model(body, LAYOUT), vector.to(dtype).float())

    def test_float32_keeps_every_bit(self, model):
        vector = flatten(model)
        vector[0], vector[1] = -0.0, 1e-45
        again = wire.decode_model(wire.encode_model(vector, LAYOUT), LAYOUT)
        assert again.numpy().tobytes() == vector.numpy().tobytes()

    def test_a_file_is_mapped_and_not_changed(self, model, tmp_path):
        path = tmp_path / "model"
        body = wire.encode_model(flatten(model), LAYOUT)
        path.write_bytes(body)
        vector = wire.decode_file(path, LAYOUT)
        assert torch.equal(vector, flatten(model))
        vector.zero_()
        assert path.read_bytes() == body
        path.unlink()
        assert vector.sum() == 0  # still there

    def test_an_unaligned_header_is_read_too(self, model):
        header, data = parts_of(wire.encode_model(flatten(model), LAYOUT))
        text = json.dumps(header).encode()
        for spaces in range(8):
            body = bytearray(body_of(text + b" " * spaces, data))
            assert torch.equal(wire.decode_model(body, LAYOUT), flatten(model))

    def test_empty_tensors_and_scalars(self):
        odd = nn.ParameterDict({"none": torch.zeros(0, 4), "one": torch.tensor(2.5), "two": torch.ones(2)})
        layout = Layout.of(odd)
        body = wire.encode_model(flatten(odd), layout)
        assert torch.equal(wire.decode_model(body, layout), flatten(odd))
        assert safetensors_load(body)["one"].shape == ()


class TestRefusals:
    def refused(self, body, kind, words):
        with pytest.raises(kind, match=words):
            wire.decode_model(body, LAYOUT)

    @pytest.fixture
    def body(self, model):
        return wire.encode_model(flatten(model), LAYOUT)

    def changed(self, body, name, **changes):
        header, data = parts_of(body)
        header[name] |= changes
        return body_of(header, data)

    def test_no_safetensors(self, body):
        self.refused(b"", wire.MalformedError, "0 bytes")
        self.refused(b"\x80\x04pickle!!", wire.MalformedError, "header claims")
        self.refused(body_of(b"{]", b""), wire.MalformedError, "no valid JSON")
        self.refused(body_of(b"[]", b""), wire.MalformedError, "no JSON object")
        self.refused(body_of(b'"\xff"', b""), wire.MalformedError, "no valid JSON")
        self.refused(body_of(b"[" * 60_000, b""), wire.MalformedError, "no valid JSON")
        self.refused(body_of(b"1" * 60_000, b""), wire.MalformedError, "no valid JSON")

    def test_cut_off_at_every_byte(self, body):
        for length in range(len(body)):
            self.refused(body[:length], wire.MalformedError, "expected a model|cut off|claims")

    def test_too_long(self, body):
        self.refused(body + b"\0", wire.MalformedError, "cut off or too long")

    def test_a_header_that_lies_about_its_length(self, body):
        for length in (2**63, 2**64 - 1, len(body), 70_000):
            self.refused(struct.pack("<Q", length) + body[8:], wire.MalformedError, "header claims")

    def test_a_header_that_lies_about_its_tensors(self, body):
        self.refused(self.changed(body, "0.bias", data_offsets=[0, 2**62]), wire.MalformedError, "span of 8 bytes")
        self.refused(self.changed(body, "0.bias", data_offsets=[0, 8]), wire.MalformedError, "gap or overlap")
        self.refused(self.changed(body, "0.bias", data_offsets=[-8, 0]), wire.MalformedError, "span of 8 bytes")
        self.refused(self.changed(body, "0.bias", data_offsets=[24.0, 32.0]), wire.MalformedError, "span of 8 bytes")
        self.refused(self.changed(body, "0.bias", data_offsets=None), wire.MalformedError, "span of 8 bytes")
        self.refused(self.changed(body, "0.bias", more=1), wire.MalformedError, "entry of tensor '0.bias'")

    def test_duplicate_names(self, body):
        header, data = parts_of(body)
        text = json.dumps(header)[:-1] + ', "0.bias": ' + json.dumps(header["0.bias"]) + "}"
        self.refused(body_of(text.encode(), data), wire.MalformedError, "twice")

    def test_names_that_do_not_fit(self, body):
        header, data = parts_of(body)
        del header["0.bias"]
        self.refused(body_of(header, data), wire.UnfitError, "lacks '0.bias'; expected")
        header["extra"] = {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]}
        self.refused(body_of(header, data), wire.UnfitError, "lacks '0.bias' and brings 'extra'")

    def test_shapes_and_dtypes_that_do_not_fit(self, body):
        self.refused(self.changed(body, "0.weight", shape=[3, 2]), wire.UnfitError, r"expected \[2, 3\]")
        self.refused(self.changed(body, "0.weight", shape=[2.0, 3.0]), wire.UnfitError, r"expected \[2, 3\]")
        self.refused(self.changed(body, "0.weight", shape="23"), wire.UnfitError, r"expected \[2, 3\]")
        self.refused(self.changed(body, "0.weight", dtype="F64"), wire.UnfitError, "expected all of them in one of")
        self.refused(self.changed(body, "0.weight", dtype="F16"), wire.UnfitError, "expected all of them in one of")
        self.refused(self.changed(body, "0.weight", dtype=["F32"]), wire.UnfitError, "expected all of them in one of")

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("dtype", wire.DTYPES.values())
    def test_not_finite(self, model, value, dtype):
        for place in (0, LAYOUT.size - 1):
            vector = flatten(model)
            vector[place] = value
            named = {name: view.clone().to(dtype) for name, view in LAYOUT.views(vector).items()}
            self.refused(safetensors_save(named), wire.UnfitError, "NaN or infinity")

    def test_what_cannot_be_sent(self, model):
        with pytest.raises(wire.UnfitError, match="do not fit float16"):
            wire.encode_model(flatten(model) + 1e6, LAYOUT, "float16")
        with pytest.raises(wire.MalformedError, match="dtype is 'int8'"):
            wire.encode_model(flatten(model), LAYOUT, "int8")
        with pytest.raises(ValueError, match="another model"):
            wire.encode_model(torch.zeros(3), LAYOUT)


class TestFuzz:
    """Whatever comes: a model or a WireError, never anything else."""

    good = wire.encode_model(torch.linspace(-1, 1, LAYOUT.size), LAYOUT)

    def read(self, body):
        try:
            vector = wire.decode_model(body, LAYOUT)
        except (wire.MalformedError, wire.UnfitError):
            return
        assert vector.shape == (LAYOUT.size,)
        assert torch.isfinite(vector).all()

    @given(st.binary(max_size=200))
    def test_any_bytes(self, body):
        self.read(body)

    @given(st.binary(max_size=200))
    def test_any_header(self, text):
        self.read(body_of(text, bytes(LAYOUT.size * 4)))

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=10,
    )

    @settings(max_examples=300)
    @given(
        st.sampled_from([*LAYOUT.names, "__metadata__", "other"]),
        st.sampled_from(["dtype", "shape", "data_offsets", "other", None]),
        json_values,
    )
    def test_any_value_in_the_header(self, name, field, value):
        header, data = parts_of(self.good)
        if field is None or name not in header:
            header[name] = value
        else:
            header[name][field] = value
        self.read(body_of(header, data))

    @settings(max_examples=300)
    @given(st.integers(0, len(good) - 1), st.binary(min_size=1, max_size=8), st.integers(-40, 40))
    def test_flipped_and_shifted_bytes(self, place, change, shift):
        body = self.good[:place] + change + self.good[place + len(change) + shift :]
        self.read(body)

    @given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=16))
    def test_every_finite_model_comes_back_bit_for_bit(self, values):
        vector = torch.tensor(values, dtype=torch.float32)
        again = wire.decode_model(wire.encode_model(vector, LAYOUT), LAYOUT)
        assert again.numpy().tobytes() == vector.numpy().tobytes()


class TestCompression:
    def test_round_trip(self):
        data = bytes(range(256)) * 5000
        assert wire.decompress_bytes(wire.compress(data), len(data)) == data

    def test_a_bomb_stops_at_the_limit(self):
        bomb = wire.compress(bytes(200_000_000))
        assert len(bomb) < 20_000

        class Counter(io.BytesIO):
            most = 0

            def write(self, piece):
                Counter.most += len(piece)
                return len(piece)

        with pytest.raises(wire.TooLargeError, match="at most that"):
            wire.decompress(io.BytesIO(bomb), Counter(), limit=3_000_000)
        assert Counter.most <= 3_000_000

    def test_a_window_that_wants_too_much_memory(self):
        import zstandard

        settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, enable_ldm=True)
        writer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
        data = writer.compress(bytes(1000)) + writer.flush()
        with pytest.raises(wire.MalformedError, match="not valid zstd"):
            wire.decompress_bytes(data, 10_000)

    @given(st.binary(max_size=100))
    def test_garbage(self, data):
        with suppress(wire.MalformedError, wire.TooLargeError):
            wire.decompress_bytes(data, 1000)


class TestHeaders:
    @given(
        st.integers(0, 10**12),
        st.lists(st.floats(0, 1), min_size=1, max_size=6).map(tuple),
        st.none() | st.integers(0, 10**9),
        st.sampled_from([None, "applied", "deprecated", "rejected"]),
        st.sampled_from(["", "it would do 3 times the usual harm, more than is allowed"]),
    )
    def test_round_trip(self, epoch, mixture, staleness, outcome, detail):
        rates = None if staleness is None else mixture[::-1]
        head = wire.ReplyHead(epoch, mixture, rates, staleness, outcome, detail)
        assert wire.ReplyHead.from_headers(head.to_headers()) == head

    @pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "1_000", "٣", "1" * 19, "0x1", None])
    def test_base_epochs_that_are_none(self, text):
        with pytest.raises(wire.MalformedError, match="CDFL-Base-Epoch"):
            wire.parse_base_epoch(text)

    @pytest.mark.parametrize("text", ["", "a b", "é", "x" * 129, "a\n", None])
    def test_keys_that_are_none(self, text):
        with pytest.raises(wire.MalformedError, match="Idempotency-Key"):
            wire.check_key(text)

    @pytest.mark.parametrize("text", ["", "a/b", "..\\x", "ü", "x" * 65, "a\n"])
    def test_client_ids_that_are_none(self, text):
        with pytest.raises(wire.MalformedError, match="client_id"):
            wire.check_client_id(text)

    @pytest.mark.parametrize("check", [wire.check_key, wire.check_client_id, wire.parse_base_epoch])
    def test_what_is_too_long_is_cut_off_and_that_is_said(self, check):
        cut = re.escape(f" is '{'x' * 40}...', 129 characters long; expected ")
        with pytest.raises(wire.MalformedError, match=cut):
            check("x" * 129)
        with pytest.raises(wire.MalformedError, match=r" is 'x y'; expected "):
            check("x y")

    def test_tokens(self):
        assert wire.bearer_token(None) is None
        assert wire.bearer_token("Bearer abc") == "abc"
        for text in ("", "abc", "Basic abc", "Bearer ", "Bearer a b", "Bearer é"):
            with pytest.raises(wire.UnauthorizedError):
                wire.bearer_token(text)

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"CDFL-Epoch": "1"},
            {"CDFL-Epoch": "1", "CDFL-Mixture": "a"},
            {"CDFL-Epoch": "1", "CDFL-Mixture": "nan"},
            {"CDFL-Epoch": "1", "CDFL-Mixture": "1.0", "CDFL-Outcome": "lost"},
        ],
    )
    def test_replies_that_cannot_be_read(self, headers):
        with pytest.raises(wire.MalformedError, match="CDFL-"):
            wire.ReplyHead.from_headers(headers)


def test_every_error_is_listed_where_they_are_told():
    kinds = {(kind.__name__, str(kind.status)) for kind in wire.WireError.__subclasses__()}
    assert set(re.findall(r"^  (\w+) +(\d+)  ", wire.errors.__doc__, re.MULTILINE)) == kinds
    page = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\d{3}", " ".join(re.findall(r"^\| (\d{3}[^|]*)", page, re.MULTILINE))))
    assert told - {"405"} == {status for _, status in kinds}  # 405 is the web framework's


def test_every_error_has_its_own_status():
    kinds = wire.WireError.__subclasses__()
    assert sorted(kind.status for kind in kinds) == [400, 401, 403, 404, 408, 409, 410, 411, 413, 415, 422, 429, 503]
    for kind in kinds:
        assert type(wire.error_of(kind.status, "why")) is kind
    assert wire.error_of(502, "bad gateway").detail == "the server answered 502: bad gateway"
    assert wire.error_of(503, "full", 2.0).retry_after == 2.0
