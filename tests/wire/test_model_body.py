"""Models as bodies: compatible with the safetensors library, parsed strictly."""

import json
import struct

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

    def test_an_unaligned_header(self, model):
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

    def test_bodies_that_are_not_safetensors(self, body):
        self.refused(b"", wire.MalformedError, "0 bytes")
        self.refused(b"\x80\x04pickle!!", wire.MalformedError, "header claims")
        self.refused(body_of(b"{]", b""), wire.MalformedError, "not valid JSON")
        self.refused(body_of(b"[]", b""), wire.MalformedError, "not a JSON object")
        self.refused(body_of(b'"\xff"', b""), wire.MalformedError, "not valid JSON")
        self.refused(body_of(b"[" * 60_000, b""), wire.MalformedError, "not valid JSON")
        self.refused(body_of(b"1" * 60_000, b""), wire.MalformedError, "not valid JSON")

    def test_cut_off_at_every_byte(self, body):
        for length in range(len(body)):
            self.refused(body[:length], wire.MalformedError, "expected a model|cut off|claims")

    def test_too_long(self, body):
        self.refused(body + b"\0", wire.MalformedError, "cut off or too long")

    def test_a_wrong_header_length(self, body):
        for length in (2**63, 2**64 - 1, len(body), 70_000):
            self.refused(struct.pack("<Q", length) + body[8:], wire.MalformedError, "header claims")

    def test_wrong_data_offsets(self, body):
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
        self.refused(body_of(header, data), wire.UnfitError, "lacks '0.bias' and has 'extra'")

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

    def test_models_that_cannot_be_encoded(self, model):
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
