"""Headers: written and parsed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfl import wire


@given(
    st.integers(0, 10**12),
    st.lists(st.floats(0, 1), min_size=1, max_size=6).map(tuple),
    st.none() | st.integers(0, 10**9),
    st.sampled_from([None, "applied", "deprecated", "rejected"]),
    st.sampled_from(["", "it would do 3 times the usual harm, more than is allowed"]),
    st.sampled_from([None, "int8", "float16", "float32"]),
)
def test_round_trip(epoch, mixture, staleness, outcome, detail, experts):
    rates = None if staleness is None else mixture[::-1]
    router = "" if experts is None else "0f" * 32
    head = wire.ReplyHead(epoch, mixture, rates, staleness, outcome, detail, experts, router)
    assert wire.ReplyHead.from_headers(head.to_headers()) == head


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 1e-3), st.floats(-2e-3, 2e-3)
)
def test_mixtures_of_uploads(shares, off):
    """Every mixture comes back to the last digit; one whose sum is off by a thousandth is divided by it."""
    whole = tuple(share / sum(shares) for share in shares)
    assert wire.parse_mixture(wire.numbers_to_text(whole), len(whole)) == whole
    scaled = wire.numbers_to_text([share * (1 + off) for share in whole])
    if abs(off) < 0.9e-3:
        assert wire.parse_mixture(scaled, len(whole)) == pytest.approx(whole, abs=1e-9)
    elif abs(off) > 1.1e-3:
        with pytest.raises(wire.MalformedError, match="CDFL-Mixture is "):
            wire.parse_mixture(scaled, len(whole))
    with pytest.raises(wire.MalformedError, match=f"expected {len(whole) + 1} numbers"):
        wire.parse_mixture(wire.numbers_to_text(whole), len(whole) + 1)


@given(st.text(max_size=30))
def test_a_mixture_is_read_or_refused(text):
    try:
        shares = wire.parse_mixture(text, 2)
    except wire.MalformedError:
        return
    assert len(shares) == 2
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(
    "text", ["experts", "models", "experts; dtype=int4; router=" + "0" * 64, "experts; dtype=int8; router=0"]
)
def test_what_a_reply_carries_is_known(text):
    with pytest.raises(wire.MalformedError, match="CDFL-Reply is"):
        wire.ReplyHead.from_headers({wire.EPOCH: "1", wire.MIXTURE: "1.0", wire.REPLY: text})


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "1_000", "٣", "1" * 19, "0x1", None])
def test_invalid_base_epochs(text):
    with pytest.raises(wire.MalformedError, match="CDFL-Base-Epoch"):
        wire.parse_base_epoch(text)


@pytest.mark.parametrize("text", ["", "a b", "é", "x" * 129, "a\n", None])
def test_invalid_keys(text):
    with pytest.raises(wire.MalformedError, match="Idempotency-Key"):
        wire.check_key(text)


@pytest.mark.parametrize("text", ["", "a/b", "..\\x", "ü", "x" * 65, "a\n"])
def test_invalid_client_ids(text):
    with pytest.raises(wire.MalformedError, match="client_id"):
        wire.check_client_id(text)


@pytest.mark.parametrize("check", [wire.check_key, wire.check_client_id, wire.parse_base_epoch])
def test_long_values_are_cut_off_in_errors(check):
    cut = re.escape(f" is '{'x' * 40}...', 129 characters long; expected ")
    with pytest.raises(wire.MalformedError, match=cut):
        check("x" * 129)
    with pytest.raises(wire.MalformedError, match=r" is 'x y'; expected "):
        check("x y")


def test_tokens():
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
def test_invalid_replies(headers):
    with pytest.raises(wire.MalformedError, match="CDFL-"):
        wire.ReplyHead.from_headers(headers)
