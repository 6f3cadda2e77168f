"""Who may do what."""

import json

import pytest
import sqlalchemy as sa

from cdfl import wire
from cdfl.server.auth import Access, Tokens
from cdfl.server.limits import Limits
from cdfl.server.rate_limits import RateLimit
from cdfl.server.store import Store

from .live import Live, near

OPERATOR = "operator-0123456789"


@pytest.fixture
def guarded(tmp_path):
    with Live(tmp_path, is_open=False, operator_token=OPERATOR) as server:
        server.token = Tokens(server.store.database).create("car-7")
        yield server


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def get(server, path, **headers):
    return server.http.get(path, headers=headers)


class TestTokens:
    def test_a_token_is_enough(self, guarded):
        assert get(guarded, "/v1/model", **bearer(guarded.token)).status_code == 200
        assert get(guarded, "/v1/clients/me", **bearer(guarded.token)).json()["client_id"] == "car-7"

    def test_the_name_may_be_said_as_well_and_must_be_right(self, guarded):
        assert get(guarded, "/v1/model", **bearer(guarded.token), **{wire.CLIENT: "car-7"}).status_code == 200
        response = get(guarded, "/v1/model", **bearer(guarded.token), **{wire.CLIENT: "car-8"})
        assert guarded.refused(response)[0] == 403

    @pytest.mark.parametrize(
        "headers",
        [{}, {wire.CLIENT: "car-7"}, bearer("cdfl_unknown"), {"Authorization": "Basic abc"}, bearer(OPERATOR)],
    )
    @pytest.mark.parametrize("path", ["/v1/model", "/v1/clients/me"])
    def test_without_a_valid_one(self, guarded, headers, path):
        response = get(guarded, path, **headers)
        assert guarded.refused(response)[0] == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"

    def test_uploads_need_one_too(self, guarded):
        response = guarded.update(near(guarded, 0))
        assert guarded.refused(response)[0] == 401
        assert guarded.engine.state.epoch == 0

    def test_a_revoked_one(self, guarded):
        get(guarded, "/v1/model", **bearer(guarded.token))
        Tokens(guarded.store.database).revoke("car-7")
        response = guarded.update(near(guarded, 0), headers=bearer(guarded.token))
        assert guarded.refused(response) == (
            401,
            "the token is unknown, expired or revoked; ask the operator for a new one",
        )

    def test_the_token_of_another_client_is_that_client(self, guarded):
        other = Tokens(guarded.store.database).create("car-8")
        get(guarded, "/v1/model", **bearer(guarded.token))
        response = guarded.update(near(guarded, 0), client_id="car-8", headers=bearer(other))
        assert guarded.refused(response)[0] == 409  # car-8 was given nothing
        response = guarded.update(near(guarded, 0), client_id="car-7", headers=bearer(other))
        assert guarded.refused(response)[0] == 403

    def test_health_needs_none(self, guarded):
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert get(guarded, path).status_code == 200


class TestOperator:
    def test_metrics_are_the_operators(self, guarded):
        assert guarded.refused(get(guarded, "/metrics"))[0] == 401
        assert guarded.refused(get(guarded, "/metrics", **bearer(guarded.token)))[0] == 401
        assert get(guarded, "/metrics", **bearer(OPERATOR)).status_code == 200

    def test_status_is_for_both(self, guarded):
        assert get(guarded, "/v1/status", **bearer(OPERATOR)).json()["epoch"] == 0
        assert get(guarded, "/v1/status", **bearer(guarded.token)).json()["epoch"] == 0

    def test_events_of_others_say_neither_who_nor_what(self, guarded):
        other = Tokens(guarded.store.database).create("car-8")
        for token in (guarded.token, other):
            get(guarded, "/v1/model", **bearer(token))
        for name, token in (("car-7", guarded.token), ("car-8", other)):
            assert guarded.update(near(guarded, 0), name, headers=bearer(token)).status_code == 200
        seen = {token: self.events(guarded, token) for token in (guarded.token, OPERATOR)}
        assert ["client_id" in event for event in seen[guarded.token]] == [True, False]
        assert "mixture" not in seen[guarded.token][1]
        assert [event["client_id"] for event in seen[OPERATOR]] == ["car-7", "car-8"]

    def events(self, server, token):
        found = []
        with server.http.stream("GET", "/v1/events", headers=bearer(token) | {"Last-Event-ID": "0"}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == 2:
                    return found
        return found


def test_several_operators(tmp_path):
    both = "alice-1, bob-2"
    with Live(tmp_path, is_open=False, operator_token=both) as server:
        asked = [server.http.get("/v1/clients", headers=bearer(token)) for token in ("alice-1", "bob-2", both, "bob")]
    assert [answer.status_code for answer in asked] == [200, 200, 401, 401]


class TestOpen:
    def test_a_name_is_enough(self, tmp_path):
        with Live(tmp_path) as server:
            assert server.model("anybody").status_code == 200
            assert server.refused(server.http.get("/v1/model"))[0] == 401
            assert server.refused(server.model("no/such\\name"))[0] == 400

    def test_only_so_many_clients(self, tmp_path):
        with Live(tmp_path, limits=Limits(clients=2)) as server:
            assert [server.model(name).status_code for name in ("a", "b", "a")] == [200, 200, 200]
            assert server.refused(server.model("c")) == (403, "the server knows 2 clients and takes no more")


class TestRate:
    def test_a_client_that_asks_too_often(self, tmp_path):
        with Live(tmp_path, limits=Limits(requests_per_second=0.1, burst=3)) as server:
            assert [server.model("busy").status_code for _ in range(3)] == [200] * 3
            response = server.model("busy")
            assert server.refused(response)[0] == 429
            assert 5 <= int(response.headers["Retry-After"]) <= 10
            assert server.model("calm").status_code == 200

    def test_drops_fall_at_a_steady_rate(self):
        now = [0.0]
        limit = RateLimit(rate=2.0, burst=3, clock=lambda: now[0])
        for _ in range(3):
            limit.check("a")
        with pytest.raises(wire.TooManyError) as refused:
            limit.check("a")
        assert refused.value.retry_after == pytest.approx(0.5)
        assert str(refused.value).endswith("; wait 1 s")  # as Retry-After says it: in whole seconds
        now[0] = 0.5
        limit.check("a")
        with pytest.raises(wire.TooManyError):
            limit.check("a")
        limit.check("b")

    def test_it_does_not_remember_for_ever(self):
        now = [0.0]
        limit = RateLimit(rate=1.0, burst=2, clock=lambda: now[0])
        for number in range(1000):
            now[0] = float(number)
            limit.check(f"client-{number}")
        assert len(limit._buckets) < 10


def test_tokens_are_looked_up_by_their_hash(tmp_path):
    """The database never sees a token, so it cannot compare one byte by byte."""
    with Store.open(tmp_path) as store:
        token = Tokens(store.database).create("car-7")
        statements = []
        sa.event.listen(store.database.engine, "before_cursor_execute", lambda *args: statements.append(args[3]))
        assert Access(Tokens(store.database)).identify({"Authorization": f"Bearer {token}"}).client_id == "car-7"
        assert statements
        assert token not in repr(statements)
