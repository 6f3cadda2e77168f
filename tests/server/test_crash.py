"""The campaign of benchmarks/crash, in short: real servers killed under load, and every fault once."""

import hashlib
import os
import random

import pytest

from benchmarks.crash.campaigns import CAMPAIGNS, Campaigns, Size
from benchmarks.crash.checks import Report, check_answers, check_journal
from benchmarks.crash.clients import Ledgers, Scribe
from benchmarks.crash.faults import NotHere
from benchmarks.crash.fork_server import ForkServer
from benchmarks.crash.kills import kill_often
from benchmarks.crash.site import Site
from benchmarks.crash.syncs import check_syncs

from .toy import some_entry

pytestmark = pytest.mark.slow

SHORT = Size(kills=2, faults=1, cuts=8, client_kills=2, server_kills=2, pauses=0, traced=4, clients=3)
QUICK = ("server killed", "client killed", "one of two servers killed")
EVERY = [
    pytest.param(name, database, marks=() if name in QUICK else pytest.mark.long)
    for name, databases in CAMPAIGNS.items()
    for database in databases
]


@pytest.fixture(scope="module")
def started_fork_server():
    if not hasattr(os, "pidfd_open"):
        pytest.skip("processes are killed by file descriptors, which only Linux has")
    with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture
def fork_server(started_fork_server):
    """Whatever a test leaves running ends with it."""
    yield started_fork_server
    started_fork_server.end_all()


@pytest.mark.parametrize(("name", "database"), EVERY)
def test_the_server_keeps_its_word(fork_server, request, tmp_path, name, database):
    postgres = None if database == "sqlite" else request.getfixturevalue("postgres")
    try:
        report = Campaigns(fork_server, postgres, tmp_path, SHORT, random.Random()).run(name, database)  # noqa: S311
    except NotHere as reason:
        pytest.skip(str(reason))
    assert report.findings == []
    assert report.counts.get("uploads acknowledged", SHORT.traced) >= SHORT.clients


# -- would it be noticed?


def careless(site, how, postgres=None):
    """What is found wrong with the syncs of a server that leaves some out."""
    site.cdfl = f"tests.server.careless:{how}"
    try:
        return check_syncs(site, SHORT.traced, postgres).findings
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.mark.long
def test_files_that_are_not_synced_are_noticed(fork_server, tmp_path):
    findings = careless(Site(fork_server, tmp_path), "without_syncing_files")
    for what in ("the content of upload-", "the content of reply-", "the folder was not synced after upload-"):
        assert sum(what in finding for finding in findings) == SHORT.traced


@pytest.mark.long
def test_an_sqlite_that_does_not_sync_is_noticed(fork_server, tmp_path):
    findings = careless(Site(fork_server, tmp_path), "without_syncing_sqlite")
    what = "the log of the database was not synced before it was answered"
    assert sorted(findings) == sorted(f"entry {epoch}: {what}" for epoch in range(1, SHORT.traced + 1))


@pytest.mark.long
def test_a_postgresql_that_does_not_sync_is_noticed(fork_server, tmp_path, postgres):
    site = Site(fork_server, tmp_path, postgres.new_schema(), tmp_path / "blobs")
    findings = careless(site, "without_syncing_postgresql", postgres)
    assert findings  # not for every answer: it syncs in the background, a few times a second
    assert all("the log of the database was not synced before it was answered" in finding for finding in findings)


@pytest.mark.long
def test_models_that_change_with_a_start_are_noticed(fork_server, tmp_path):
    site = Site(fork_server, tmp_path)
    site.cdfl = "tests.server.careless:recovering_other_models"
    findings = " ".join(kill_often(site, 1, SHORT.clients, random.Random()).findings)  # noqa: S311
    assert "a replay gives" in findings
    assert "is not that of a replay" in findings
    assert "the stored cluster_models are not those of a replay" in findings


@pytest.fixture
def told(tmp_path):
    """Two uploads of a client, both acknowledged; their ledger and their entries."""
    scribe = Scribe(tmp_path / "ledger", "car-7")
    entries = []
    for epoch in (1, 2):
        scribe.sends(f"key-{epoch}", str(epoch - 1), b"model")
        scribe.note(answered=f"key-{epoch}", status=200, epoch=epoch, retry_after=None)
        scribe.note(reply=f"key-{epoch}", digest=f"digest-{epoch}", head="")
        entries.append(some_entry(epoch, digest=hashlib.sha256(b"model").hexdigest()))
    return Ledgers(tmp_path), scribe, entries


def findings_of(check, *arguments):
    report = Report()
    check(*arguments, report)
    return " ".join(report.findings)


def test_what_is_in_order_is_found_to_be(told):
    ledgers, _, entries = told
    assert findings_of(check_journal, entries, ledgers.read()) == ""
    assert findings_of(check_answers, ledgers.read()) == ""


def test_lost_doubled_moved_and_changed_uploads_are_found(told):
    ledgers, _, (first, second) = told
    read = ledgers.read()
    assert "key-2 is epoch 2; the journal has it at None" in findings_of(check_journal, [first], read)
    twice = some_entry(3, key="key-1", digest=first.digest, base_epoch=0)
    assert "applied twice" in findings_of(check_journal, [first, second, twice], read)
    late = some_entry(3, key="key-2", digest=second.digest, base_epoch=1)
    assert "epochs of the journal have gaps: [1, 3]" in findings_of(check_journal, [first, late], read)
    changed = some_entry(2)
    assert "entry 2 is not what car-7 sent" in findings_of(check_journal, [first, changed], read)


def test_answers_that_differ_and_refusals_without_hope_are_found(told):
    ledgers, scribe, _ = told
    scribe.note(reply="key-2", digest="another", head="")
    assert "key-2: told digest" in findings_of(check_answers, ledgers.read())
    scribe.note(answered="key-3", status=500, epoch=None, retry_after=None)
    assert "'status': 500" in findings_of(check_answers, ledgers.read())
