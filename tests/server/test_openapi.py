"""The OpenAPI page is complete and true: schemathesis asks everything it describes, rightly and wrongly."""

from unittest import SkipTest

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import InvalidArgument, Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from cdfl import wire
from cdfl.server.auth import Tokens

from .live import Live
from .toy import same_state

pytestmark = pytest.mark.slow

ENDLESS = "/v1/events"  # tested elsewhere: a stream has no end to wait for
ROUTES = [
    ("GET", "/v1/model"),
    ("GET", "/v1/router"),
    ("POST", "/v1/updates"),
    ("GET", "/v1/status"),
    ("GET", "/v1/clients/me"),
    ("GET", "/v1/clients"),
    ("GET", "/v1/clusters"),
    ("GET", "/metrics"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
]
FOR_OPERATORS = {"/v1/clients", "/v1/clusters", "/metrics"}
OPERATOR = "operators-only"
# A body of random bytes is as good as its schema (octets) can say, and still no model.
UNFAIR = {"positive_data_acceptance"}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with Live(tmp_path_factory.mktemp("store"), is_open=False, operator_token=OPERATOR) as server:
        server.token = Tokens(server.store.database).create("schemathesis")
        yield server


@pytest.fixture(scope="module")
def page(live):
    return schemathesis.openapi.from_url(f"{live.url}/openapi.json")


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_everything_it_describes(live, page, method, path, mode):
    before = live.engine.state
    checks = [check for check in CHECKS.get_all() if check.__name__ not in UNFAIR]

    @settings(
        max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    @given(page[path][method].as_strategy(generation_mode=mode))
    def ask(case):
        if any(name.lower() == "transfer-encoding" for name in case.headers or {}):
            return  # uvicorn refuses it before any route
        token = OPERATOR if path in FOR_OPERATORS else live.token
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=checks)

    try:
        ask()
    except (Unsatisfiable, InvalidArgument, SkipTest):
        assert mode is GenerationMode.NEGATIVE  # nothing about this route can be wrong
    assert same_state(live.engine.state, before)


def test_it_describes_every_route(live):
    described = live.http.get("/openapi.json").json()
    assert {(method.upper(), path) for path in described["paths"] for method in described["paths"][path]} == {
        *ROUTES,
        ("GET", ENDLESS),
    }
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert operation["summary"]
            assert operation["description"]
            assert "200" in operation["responses"]
            assert "422" not in operation["responses"] or path in ("/v1/model", "/v1/updates")
    update = described["paths"]["/v1/updates"]["post"]
    names = {parameter["name"] for parameter in update["parameters"] if parameter["required"]}
    assert names == {wire.BASE_EPOCH, wire.KEY}
    assert set(update["requestBody"]["content"]) == set(wire.CONTENT_TYPES)
    assert set(update["responses"]["200"]["headers"]) == {
        wire.EPOCH,
        wire.MIXTURE,
        wire.RATES,
        wire.STALENESS,
        wire.OUTCOME,
        wire.DETAIL,
        wire.REPLY,
    }
