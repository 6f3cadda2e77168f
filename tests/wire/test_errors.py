"""Errors and their HTTP status."""

import re

from cdfl import wire


def test_the_docstring_lists_every_error():
    kinds = {(kind.__name__, str(kind.status)) for kind in wire.WireError.__subclasses__()}
    assert set(re.findall(r"^  (\w+) +(\d+)  ", wire.errors.__doc__, re.MULTILINE)) == kinds


def test_every_error_has_its_own_status():
    kinds = wire.WireError.__subclasses__()
    assert sorted(kind.status for kind in kinds) == [400, 401, 403, 404, 408, 409, 410, 411, 413, 415, 422, 429, 503]
    for kind in kinds:
        assert type(wire.error_of(kind.status, "why")) is kind
    assert wire.error_of(502, "bad gateway").detail == "the server answered 502: bad gateway"
    assert wire.error_of(503, "full", 2.0).retry_after == 2.0
