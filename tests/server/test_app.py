"""The routes, over real HTTP."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import torch

from cdfl import wire
from cdfl.core import join, personalize
from cdfl.server.limits import Limits

from .live import LAYOUT, Live, decoded, near, tiny_instance, wait_for
from .toy import was_sent

OPERATOR = "of-the-operator"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for tests that do not mind each other; every test has clients of its own."""
    with Live(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def server(tmp_path):
    with Live(tmp_path) as server:
        yield server


class TestModel:
    def test_a_newcomer_gets_the_average_and_nothing_moves(self, shared):
        before = shared.engine.state
        response = shared.model("newcomer")
        assert decoded(response).tolist() == join(before, shared.engine.settings).personal_model.tolist()
        assert response.headers[wire.EPOCH] == str(before.epoch)
        assert wire.ReplyHead.from_headers(response.headers).mixture == pytest.approx((1 / 3, 1 / 3, 1 / 3))
        assert shared.engine.state is before
        assert was_sent(shared.store, "newcomer", before.epoch)

    def test_a_known_client_gets_its_last_mixture_over_the_clusters_of_today(self, server):
        server.model("one")
        first = wire.ReplyHead.from_headers(server.update(near(server, 0), "one").headers)
        server.model("two")
        server.update(near(server, 1), "two", base_epoch=1)
        response = server.model("one")
        assert wire.ReplyHead.from_headers(response.headers) == wire.ReplyHead(2, first.mixture)
        expected = personalize(server.engine.state.cluster_models, torch.tensor(first.mixture))
        assert decoded(response).tolist() == expected.tolist()

    @pytest.mark.parametrize("dtype", wire.DTYPES)
    def test_in_the_dtype_that_is_asked_for(self, shared, dtype):
        body = shared.model("dtypes", params={"dtype": dtype}).content
        assert len(body) == wire.body_size(LAYOUT, dtype)
        whole = decoded(shared.model("dtypes"))
        assert torch.equal(wire.decode_model(body, LAYOUT), whole.to(wire.DTYPES[dtype]).float())

    @pytest.mark.parametrize("query", ["dtype=int8", "dtype=", "dype=float32"])
    def test_a_dtype_that_does_not_exist(self, shared, query):
        assert shared.refused(shared.model(params=query))[0] == 400

    def test_packed_only_for_those_who_ask_for_nothing_else(self, shared):
        plain = shared.model("packed")
        assert "content-encoding" not in plain.headers
        with shared.http.stream(
            "GET", "/v1/model", headers={wire.CLIENT: "packed", "Accept-Encoding": "zstd"}
        ) as answer:
            assert answer.headers["content-encoding"] == "zstd"
            body = b"".join(answer.iter_raw())
        assert wire.decompress_bytes(body, 10**6) == plain.content


class TestUpdates:
    def test_an_upload_moves_a_cluster_and_is_answered(self, server):
        server.model()
        before = server.engine.state
        response = server.update(near(server, 1))
        head = wire.ReplyHead.from_headers(response.headers)
        after = server.engine.state
        assert (head.epoch, head.staleness, head.outcome) == (1, 1, "applied")
        assert head.rates is not None
        moved = [rate > 0 for rate in head.rates]
        assert [
            not torch.equal(one, other) for one, other in zip(before.cluster_models, after.cluster_models, strict=True)
        ] == moved
        assert decoded(response).tolist() == personalize(after.cluster_models, torch.tensor(head.mixture)).tolist()
        entry = server.store.entries(0)[0]
        assert (entry.epoch, entry.client_id, entry.mixture, entry.rates) == (1, "car-7", head.mixture, head.rates)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_smaller_dtypes_and_zstd_go_in_as_well(self, server, dtype):
        server.model()
        vector = wire.decode_model(near(server, 0), LAYOUT)
        body = wire.compress(wire.encode_model(vector, LAYOUT, dtype))
        response = server.update(body, headers={"Content-Encoding": "zstd"}, params={"dtype": dtype})
        assert response.headers[wire.OUTCOME] == "applied"
        assert len(response.content) == wire.body_size(LAYOUT, dtype)

    def test_a_chunked_body(self, server):
        server.model()
        body = near(server, 0)
        response = server.update(body[i : i + 50] for i in range(0, len(body), 50))
        assert response.headers[wire.OUTCOME] == "applied"

    def test_an_old_upload_is_deprecated_and_answered(self, tmp_path):
        instance = tiny_instance()
        with Live(tmp_path, instance.with_settings(max_staleness=1)) as server:
            server.model("slow")
            for epoch in range(2):
                server.model("fast")
                server.update(near(server, 0), "fast", base_epoch=epoch, key=f"k{epoch}")
            before = server.engine.state
            response = server.update(near(server, 1), "slow", base_epoch=0)
            head = wire.ReplyHead.from_headers(response.headers)
            assert (head.outcome, head.epoch, head.staleness) == ("deprecated", 2, 3)
            assert head.rates == (0, 0, 0)
            assert torch.equal(before.cluster_models, server.engine.state.cluster_models)
            assert server.store.entries(2)[0].losses == ()


class TestIdempotency:
    def test_the_same_key_and_body_counts_once_and_gets_the_same_bytes(self, server):
        server.model()
        body = near(server, 0)
        first = server.update(body)
        server.model("other")
        server.update(near(server, 1), "other", base_epoch=1)
        again = server.update(body)
        assert again.content == first.content
        assert {name: first.headers[name] for name in first.headers if name.startswith("cdfl")} == {
            name: again.headers[name] for name in again.headers if name.startswith("cdfl")
        }
        assert server.engine.state.epoch == 2

    def test_it_is_the_same_packed_or_not_and_in_another_dtype(self, server):
        server.model()
        body = near(server, 0)
        first = decoded(server.update(body))
        packed = server.update(wire.compress(body), headers={"Content-Encoding": "zstd"}, params={"dtype": "bfloat16"})
        assert torch.equal(decoded(packed), first.bfloat16().float())
        assert server.engine.state.epoch == 1

    def test_a_key_with_another_body_is_refused(self, server):
        server.model()
        server.update(near(server, 0))
        status, detail = server.refused(server.update(near(server, 0, seed=1)))
        assert status == 422
        assert "another body" in detail

    def test_a_reply_that_is_gone(self, server):
        server.model()
        body = near(server, 0)
        server.update(body)
        server.update(near(server, 0), base_epoch=1, key="key-2")
        assert server.refused(server.update(body)) == (
            410,
            "this upload was taken, but its reply is no longer kept; GET /v1/model",
        )
        assert server.engine.state.epoch == 2

    def test_keys_of_other_clients_are_their_own(self, server):
        for name in ("one", "two"):
            server.model(name)
        for name in ("one", "two"):
            assert server.update(near(server, 0), name).headers[wire.OUTCOME] == "applied"
        assert server.engine.state.epoch == 2

    def test_an_epoch_that_was_never_sent(self, server):
        assert server.refused(server.update(near(server, 0)))[0] == 409
        server.model()
        status, detail = server.refused(server.update(near(server, 0), base_epoch=1))
        assert (status, "GET /v1/model" in detail) == (409, True)
        assert server.engine.state.epoch == 0

    def test_a_key_in_progress_and_another_upload_meanwhile(self, server):
        server.model()
        held = threading.Event()
        commit = server.store.commit
        server.store.commit = lambda *group: (held.wait(10), commit(*group))[1]
        body, answers = near(server, 0), []
        first = threading.Thread(target=lambda: answers.append(server.update(body)))
        first.start()
        wait_for(lambda: server.engine._depth == 1)
        for key, words in (("key-1", "this upload is still"), ("key-2", "another upload of this client is still")):
            response = server.update(body, key=key)
            assert response.headers["Retry-After"] == "2"
            assert words in server.refused(response)[1]
        held.set()
        first.join()
        assert answers[0].content == server.update(body).content
        assert server.engine.state.epoch == 1


class TestPages:
    def test_status(self, shared):
        status = shared.http.get("/v1/status", headers={wire.CLIENT: "asks"}).json()
        assert status["num_clusters"] == 3
        assert [tensor["name"] for tensor in status["layout"]] == list(LAYOUT.names)
        assert [tuple(tensor["shape"]) for tensor in status["layout"]] == [tuple(shape) for shape in LAYOUT.shapes]
        assert len(status["cluster_losses"]) == len(status["cluster_epochs"]) == 3
        assert status["limits"]["body_bytes"] >= wire.body_size(LAYOUT)

    def test_me(self, server):
        me = lambda: server.http.get("/v1/clients/me", headers={wire.CLIENT: "car-7"}).json()  # noqa: E731
        assert me()["is_known"] is False
        server.model()
        assert (me()["is_known"], me()["uploads"], me()["mixture"]) == (True, 0, None)
        response = server.update(near(server, 0))
        known = me()
        assert (known["uploads"], known["epoch"], known["outcome"]) == (1, 1, "applied")
        assert tuple(known["mixture"]) == wire.ReplyHead.from_headers(response.headers).mixture

    def test_health_and_readiness(self, server):
        assert server.http.get("/healthz").json() == {"status": "alive"}
        assert server.http.get("/readyz").json() == {"status": "ready"}
        server.engine._depth += server.engine.capacity
        assert server.refused(server.http.get("/readyz"))[0] == 503
        server.engine._depth -= server.engine.capacity

    def test_metrics(self, server):
        server.model()
        server.update(near(server, 0))
        server.update(b"nonsense", key="key-2")
        lines = server.http.get("/metrics").text.splitlines()
        for line in (
            'cdfl_uploads_total{outcome="applied"} 1.0',
            'cdfl_requests_refused_total{status="400"} 1.0',
            "cdfl_epoch 1.0",
            "cdfl_queue_depth 0.0",
            "cdfl_joins_total 1.0",
            'cdfl_upload_seconds_count{stage="commit"} 1.0',
        ):
            assert line in lines
        for stage in ("receive", "decode", "evaluate", "apply", "commit"):
            assert any(line.startswith(f'cdfl_upload_seconds_count{{stage="{stage}"}}') for line in lines)
        losses = server.engine.state.cluster_losses.tolist()
        assert [f'cdfl_cluster_loss{{cluster="{k}"}} {loss}' in lines for k, loss in enumerate(losses)] == [True] * 3

    def test_what_does_not_exist(self, shared):
        assert shared.refused(shared.http.get("/v2/model"))[0] == 404
        response = shared.http.delete("/v1/model")
        assert (shared.refused(response)[0], response.headers["Allow"]) == (405, "GET")

    def test_documentation(self, shared):
        assert "swagger" in shared.http.get("/docs").text
        page = shared.http.get("/openapi.json").json()
        assert {"/v1/model", "/v1/updates", "/v1/status", "/v1/clients/me", "/v1/events"} <= set(page["paths"])


@contextmanager
def asked_at_once(server: Live, count: int) -> Iterator[list[socket.socket]]:
    """Streams that the server, held up until all are asked for, finds in one round of its loop."""
    with ExitStack() as stack:
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(count)]
        for client in clients:
            stack.enter_context(client)
        wait_for(lambda: len(list(server.server.connections)) == count)
        loop = next(iter(server.server.connections)).loop
        held, go_on = threading.Event(), threading.Event()
        loop.call_soon_threadsafe(lambda: (held.set(), go_on.wait(5)))
        assert held.wait(5)
        for client in clients:  # as the operator: a client is looked up first, one sooner than another
            client.sendall(f"GET /v1/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {OPERATOR}\r\n\r\n".encode())
        go_on.set()
        yield clients


def read_begin(client: socket.socket) -> bytes:
    """A response up to the first words of its body."""
    said = b""
    while not said.endswith((b"}", b"\n\n\r\n")):
        piece = client.recv(2**16)
        assert piece, said
        said += piece
    return said


class TestEvents:
    def listen(self, server, count, **headers):
        """The first events of a stream; beats are passed over."""
        events = []
        with server.http.stream("GET", "/v1/events", headers={wire.CLIENT: "ear"} | headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            data = None
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                if line.startswith("id: "):
                    events.append((int(line.removeprefix("id: ")), data))
                if len(events) == count:
                    return events
        return events

    def test_from_any_epoch(self, server):
        for epoch in range(3):
            server.model()
            server.update(near(server, 0), base_epoch=epoch, key=f"k{epoch}")
        events = self.listen(server, 2, **{"Last-Event-ID": "1"})
        assert [identity for identity, _ in events] == [2, 3]
        assert [event["epoch"] for _, event in events] == [2, 3]
        assert events[0][1]["client_id"] == "car-7"
        assert sum(events[0][1]["mixture"]) == pytest.approx(1)
        assert len(events[0][1]["losses"]) == len(events[0][1]["distances"]) == 3

    def test_what_clients_report(self, server):
        server.model()
        server.update(near(server, 0))
        server.update(near(server, 0), base_epoch=1, key="two", headers={wire.REPORT: "1.5,0.25"})
        (_, first), (_, second) = self.listen(server, 2, **{"Last-Event-ID": "0"})
        assert (first["report"], second["report"]) == ([], [1.5, 0.25])
        for wrong in ("1.5", "a,b", "nan,1", "1,2,3", ""):
            answer = server.update(near(server, 0), base_epoch=2, key="three", headers={wire.REPORT: wrong})
            assert server.refused(answer)[0] == 400

    def test_clients_that_join(self, server):
        heard = []

        def listen():
            with httpx.stream("GET", f"{server.url}/v1/events", timeout=20) as answer:
                for line in answer.iter_lines():
                    heard.append(line)
                    if line.startswith("data"):
                        return

        listener = threading.Thread(target=listen)
        listener.start()
        wait_for(lambda: server.server.notifier._waiting)
        server.model("car-9")
        listener.join(10)
        assert heard[-2] == "event: joined"
        assert json.loads(heard[-1].removeprefix("data: "))["client_id"] == "car-9"

    def test_as_they_come(self, server):
        server.model()
        heard = []
        listener = threading.Thread(target=lambda: heard.extend(self.listen(server, 1)))
        listener.start()
        wait_for(lambda: server.server.notifier._waiting)
        server.update(near(server, 0))
        listener.join(5)
        assert [identity for identity, _ in heard] == [1]

    def test_it_ends_when_the_server_does(self, tmp_path):
        with Live(tmp_path) as server:
            done = threading.Event()
            url = server.url
            threading.Thread(
                target=lambda: (httpx.get(f"{url}/v1/events", headers={wire.CLIENT: "ear"}), done.set())
            ).start()
            wait_for(lambda: server.server.notifier._waiting)
        assert done.wait(5)

    def test_not_too_many_at_a_time(self, tmp_path):
        ask = {"headers": {wire.CLIENT: "ear"}}
        one = Limits(streams=1)
        with Live(tmp_path, limits=one) as server, server.http.stream("GET", "/v1/events", **ask) as stream:
            lines = stream.iter_lines()  # held, or httpx would close the stream
            next(lines)
            assert server.refused(httpx.get(f"{server.url}/v1/events", **ask))[0] == 503

    def test_not_too_many_that_come_at_once(self, tmp_path):
        two = Limits(operator_streams=2)
        with Live(tmp_path, limits=two, operator_token=OPERATOR) as server, asked_at_once(server, 12) as clients:
            said = [read_begin(client) for client in clients]
            opened = [words for words in said if b" 200 " in words]
            assert len(opened) == 2
            assert all(b"the epochs after this line are events" in words for words in opened)
            refused = [words for words in said if b" 503 " in words]
            assert len(refused) == 10
            assert all(
                b"retry-after: " in words and b"2 streams of the operator are open" in words for words in refused
            )

    def test_whoever_hangs_up_leaves_room(self, tmp_path):
        with Live(tmp_path, limits=Limits(streams=2), operator_token=OPERATOR) as server:
            with asked_at_once(server, 2) as clients:
                assert all(b" 200 " in read_begin(client) for client in clients)
            wait_for(lambda: self.is_let_in(server))

    def test_whoever_hangs_up_before_the_first_word_leaves_room(self, tmp_path):
        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            await asyncio.sleep(1)  # the peer does not read yet
            sent.append(message)

        sent = []
        headers = [(b"authorization", f"Bearer {OPERATOR}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/v1/events", "query_string": b"", "headers": headers}
        with Live(tmp_path, limits=Limits(streams=1), operator_token=OPERATOR) as server:
            asyncio.run(server.server.config.loaded_app(scope, receive, send))
            assert sent == []
            assert self.is_let_in(server)

    def is_let_in(self, server):
        with server.http.stream("GET", "/v1/events", headers={wire.CLIENT: "ear"}) as answer:
            return answer.status_code == 200 and next(answer.iter_lines()).startswith(": the epochs")

    @pytest.mark.parametrize("text", ["-1", "x", "1.5"])
    def test_an_epoch_that_is_none(self, shared, text):
        assert (
            shared.refused(shared.http.get("/v1/events", headers={wire.CLIENT: "e", "Last-Event-ID": text}))[0] == 400
        )
