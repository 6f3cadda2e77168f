"""Several servers on one PostgreSQL: any of them takes uploads, one applies them, another one takes over."""

import os
import random
from contextlib import ExitStack

import pytest

from benchmarks.crash.fork_server import ForkServer
from benchmarks.crash.front_ends import kill_either
from benchmarks.crash.site import Site
from cdfl import wire
from cdfl.server import database_engine
from cdfl.server.auth import Tokens
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreBusy, StoreLost
from cdfl.server.verify import verify
from cdfl.user_code import SetupError

from .live import Live, near, tiny_instance, wait_for
from .toy import keep, same_state, spooled, stored_blobs

pytestmark = pytest.mark.slow


@pytest.fixture
def place(postgres, tmp_path):
    return postgres.new_schema(), tmp_path / "blobs"


@pytest.fixture
def serve(place):
    """Starts front ends; they end with the test."""
    with ExitStack() as running:

        def start(**options):
            return running.enter_context(Live(place[0], blobs=place[1], shared=True, **options))

        yield start


@pytest.fixture
def pair(serve):
    """The owner, and a front end beside it."""
    owner, other = serve(), serve()
    assert (owner.store.is_owner, other.store.is_owner) == (True, False)
    return owner, other


def join(server, client_id="car-7"):
    response = server.model(client_id)
    assert response.status_code == 200, response.text
    return int(response.headers[wire.EPOCH])


def upload(server, cluster=0, client_id="car-7", **options):
    response = server.update(near(server, cluster), client_id, **options)
    assert response.status_code == 200, response.text
    return response


def wait_until_level(*servers):
    wait_for(lambda: len({server.engine.state.epoch for server in servers}) == 1)


def test_an_upload_taken_by_one_and_applied_by_the_other(pair):
    owner, other = pair
    epoch = join(other)
    first = upload(other, base_epoch=epoch)
    assert first.headers[wire.OUTCOME] == "applied"
    assert owner.engine.state.epoch == 1
    second = upload(owner, 1, base_epoch=1, key="two")  # the same client, at the other one
    third = upload(other, 1, base_epoch=2, key="three")
    assert [int(each.headers[wire.EPOCH]) for each in (first, second, third)] == [1, 2, 3]
    wait_until_level(owner, other)
    assert same_state(owner.engine.state, other.engine.state)
    assert same_state(owner.store.recover().state, owner.engine.state)
    assert verify(owner.store).findings == []
    assert len(stored_blobs(owner.store, "upload")) == 3  # none is left over
    statuses = [server.http.get("/v1/status", headers={wire.CLIENT: "car-7"}).json() for server in pair]
    assert statuses[0] == statuses[1]


def test_the_same_key_at_the_other_front_end_gets_the_same_reply(pair):
    owner, other = pair
    base_epoch, body = join(other), near(other, 0)
    replies = [server.update(body, base_epoch=base_epoch, key="one") for server in (other, owner, other)]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len({reply.content for reply in replies}) == 1
    assert len({reply.headers[wire.EPOCH] for reply in replies}) == 1
    assert owner.store.client("car-7").uploads == 1
    again = owner.update(near(owner, 1), base_epoch=base_epoch, key="one")
    assert owner.refused(again)[0] == 422


def test_an_upload_that_was_overtaken_is_sent_again(pair):
    """Two front ends take uploads of one client at once: one of them counts, the other is asked to come again."""
    owner, other = pair
    base_epoch = join(owner)
    record = other.store.client("car-7", base_epoch, "two")
    upload(owner, base_epoch=base_epoch, key="one")
    read = other.store.client
    other.store.client = lambda name, epoch=None, key=None: record  # what it has read before that
    response = other.update(near(other, 0), base_epoch=base_epoch, key="two")
    other.store.client = read
    assert other.refused(response)[0] == 409
    assert response.headers["Retry-After"] == "2"
    assert owner.store.client("car-7").uploads == 1
    assert len(stored_blobs(owner.store, "upload")) == 1
    upload(other, base_epoch=1, key="two")


def test_uploads_that_are_refused_are_answered_by_the_one_that_took_them(pair):
    owner, other = pair
    base_epoch = join(other)
    owner.engine.stepper.replies = None  # a bug, in the owner
    response = other.update(near(other, 0), base_epoch=base_epoch)
    assert other.refused(response)[0] == 503
    owner.engine.stepper.replies = owner.engine.replies
    upload(other, base_epoch=base_epoch)
    assert len(stored_blobs(owner.store, "upload")) == 1


def test_another_one_takes_over(serve, caplog):
    first, second = serve(), serve()
    base_epoch = join(second)
    upload(second, base_epoch=base_epoch)
    first.server.stop()
    first.engine.close()
    first.store.close()
    upload(second, 1, base_epoch=1, key="two")
    assert second.store.is_owner
    assert second.store.recover().state.epoch == 2
    third = serve()
    assert not third.store.is_owner
    upload(third, 2, base_epoch=2, key="three")
    assert "this server applies the uploads now, from epoch 1 on" in caplog.text


def test_an_owner_that_was_silent_follows(pair):
    """As after a pause: its database connection is gone, and another front end owns the store."""
    owner, other = pair
    base_epoch = join(owner)
    with owner.store.database._turn:
        owner.store.database._connection.exec_driver_sql("SET idle_session_timeout = '200ms'")
        wait_for(lambda: other.store.is_owner)
    assert owner.store.is_owner  # it does not know yet
    body = near(owner, 0)
    response = owner.update(body, base_epoch=base_epoch)
    assert owner.refused(response)[0] == 503
    assert other.engine.state.epoch == 0
    assert owner.update(body, base_epoch=base_epoch).status_code == 200
    assert not owner.store.is_owner
    wait_for(lambda: other.engine.state.epoch == 1)
    assert owner.engine.lost is None
    with pytest.raises(StoreLost):
        owner.store.snapshot(owner.engine.state)


def test_who_is_forgotten_at_one_is_forgotten_at_the_other(pair):
    owner, other = pair
    base_epoch = join(other)
    upload(other, base_epoch=base_epoch)
    wait_until_level(owner, other)
    forgotten = []
    other.engine.listeners.append(type("", (), {"forgot": forgotten.append, "committed": print, "joined": print})())
    assert other.server.notifier.after(0)
    owner.store.ask_to_forget("car-7")
    wait_for(lambda: forgotten)
    assert other.server.notifier.after(0) is None
    assert other.store.client("car-7") is None
    assert stored_blobs(owner.store, "upload") == []
    response = other.update(near(other, 0), base_epoch=base_epoch, key="two")
    assert other.refused(response)[0] == 409  # it was never sent a model
    assert join(other) == 1


def test_who_is_revoked_while_an_upload_waits_is_refused(serve):
    owner, other = serve(is_open=False), serve(is_open=False)
    headers = {"Authorization": f"Bearer {Tokens(owner.store.database).create('car-7')}"}
    assert other.http.get("/v1/model", headers=headers).status_code == 200
    offered = other.engine.follower.offer

    def revoke_first(group):
        if group:
            Tokens(owner.store.database).revoke("car-7")
        offered(group)

    other.engine.follower.offer = revoke_first
    response = other.update(near(other, 0), headers=headers)
    assert other.refused(response)[0] == 401
    assert owner.engine.state.epoch == 0
    assert stored_blobs(owner.store, "upload") == []


def test_what_a_front_end_that_died_has_left_is_swept(pair):
    owner, other = pair
    base_epoch = join(other)
    upload(other, base_epoch=base_epoch)
    kept = stored_blobs(owner.store)
    left = keep(other.store, b"never offered")
    spooled(other.store, b"never complete")
    owner.store.sweep()
    assert stored_blobs(owner.store) == sorted([*kept, left])  # it may be about to be offered
    owner.store.sweep()
    assert stored_blobs(owner.store) == kept
    assert len(list((owner.store.blobs.folder / "spool").iterdir())) == 1
    owner.store.blobs.empty_spool(seconds=0)
    assert not list((owner.store.blobs.folder / "spool").iterdir())


def test_an_owner_that_is_paused_is_replaced(postgres, tmp_path):
    """Its process is stopped; when it goes on, it cannot commit. The campaign of benchmarks/crash has more load."""
    place = postgres.new_schema(), tmp_path / "blobs"
    with ForkServer() as fork_server:
        sites = [Site(fork_server, tmp_path / name, *place) for name in ("one", "two")]
        for site in sites:
            site.cdfl = "tests.server.careless:with_a_short_lease"
        report = kill_either(sites, kills=0, pauses=1, clients=2, chance=random.Random())  # noqa: S311
    assert report.findings == []
    assert report.counts["takeovers"] == 1


def test_a_front_end_with_another_problem_or_other_settings_is_refused(serve, place):
    serve()
    with pytest.raises(SetupError, match="another server serves this store with other settings or data: max_staleness"):
        serve(instance=tiny_instance().with_settings(max_staleness=3))
    with pytest.raises(StoreBusy, match=f"process {os.getpid()} on "):
        Store.open(*place)


def test_the_lease_of_the_owner(pair):
    """What the documentation says of an owner's lease."""
    owner, _ = pair
    with owner.store.database._turn:
        told = owner.store.database._connection.exec_driver_sql("SHOW idle_session_timeout").scalar()
    assert told == f"{database_engine.LEASE_SECONDS}s"
