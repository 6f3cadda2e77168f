"""Tokens, operators, names of hosts, certificates; and backups of a running server."""

import asyncio
import ssl
import subprocess
import time

import httpx
import pytest
from starlette.responses import PlainTextResponse

from cdfl import wire
from cdfl.server.auth import Access, Tokens
from cdfl.server.backup import backup
from cdfl.server.host_check import LOOPBACK, HostCheck
from cdfl.server.store import Store
from cdfl.server.verify import verify

from ..certificate import make_certificate
from .live import Live, near, wait_for

pytestmark = pytest.mark.slow


# -- tokens and operators


@pytest.mark.parametrize("token", ["two words", "tab\tinside", " ", "x" * 600, "naïve"])
def test_an_operator_token_that_no_request_could_send_is_refused(tmp_path, token):
    with Store.open(tmp_path) as store, pytest.raises(ValueError, match="CDFL_OPERATOR_TOKEN"):
        Access(Tokens(store.database), operator_token=token)


def test_white_space_around_an_operator_token_does_not_count(tmp_path):
    with Store.open(tmp_path) as store:
        access = Access(Tokens(store.database), operator_token=" secret\n")  # noqa: S106
        assert access.is_operator({"Authorization": "Bearer secret"})


def test_tokens_expire(tmp_path, monkeypatch):
    with Store.open(tmp_path) as store:
        tokens = Tokens(store.database)
        token, for_ever = tokens.create("car-7", seconds=60.0), tokens.create("car-8")
        assert tokens.claim(token).client_id == "car-7"
        later = time.time() + 61
        monkeypatch.setattr("cdfl.server.auth.time.time", lambda: later)
        assert tokens.claim(token) is None
        assert tokens.claim(for_ever).client_id == "car-8"


def test_failed_authentications_are_logged_with_their_address_and_counted(tmp_path, caplog):
    with Live(tmp_path, is_open=False, operator_token="boss") as server:  # noqa: S106
        for _ in range(3):
            assert server.model(headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert caplog.text.count("authentication failed from 127.0.0.1") == 3
        assert "wrong" not in caplog.text
        page = server.http.get("/metrics", headers={"Authorization": "Bearer boss"}).text
        assert "cdfl_auth_failures_total 3.0" in page
        assert server.http.get("/metrics").status_code == 401


def test_rejected_uploads_age_nobody(tmp_path):
    """One fast token: its uploads beyond its share are rejected, and the epoch stays."""
    with Live(tmp_path) as server:
        for name in ("fast", *(f"car-{number}" for number in range(8))):
            server.model(name)
        for number in range(8):
            server.update(near(server, number % 3, seed=number), f"car-{number}", 0, key="key")
        before = server.engine.state.epoch
        epoch, outcomes = 0, []
        for number in range(30):
            response = server.update(near(server, 0, seed=number), "fast", epoch, key=f"key-{number}")
            head = wire.ReplyHead.from_headers(response.headers)
            epoch = head.epoch
            outcomes.append(head.outcome)
        assert "rejected" in outcomes
        assert server.engine.state.epoch == before + outcomes.count("applied") < before + 30


def test_a_redirect_never_repeats_the_host(tmp_path):
    with Live(tmp_path) as server:
        for path in ("/v1/model/", "/docs/", "/metrics/", "//evil.example"):
            response = server.http.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
            assert not response.is_redirect
            assert "evil.example" not in response.headers.get("location", "")


def test_a_local_server_answers_to_its_own_names_only(tmp_path):
    async def app(scope, receive, send):
        await PlainTextResponse("fine")(scope, receive, send)

    checked = httpx.ASGITransport(HostCheck(app, LOOPBACK))

    async def status(host):
        async with httpx.AsyncClient(transport=checked, base_url="http://localhost") as client:
            return (await client.get("/", headers={"Host": host})).status_code

    found = [asyncio.run(status(host)) for host in ("localhost:8000", "[::1]:8000", "127.0.0.1", "rebound.example")]
    assert found == [200, 200, 200, 421]


# -- TLS


def make_client_certificate(folder, name):
    """An authority, and a client's certificate that it signed."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S603, S607

    new, of_authority = ["-newkey", "rsa:2048", "-nodes"], ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl("req", *new, "-keyout", "client.key", "-out", "client.csr", "-subj", f"/CN={name}")
    openssl("x509", "-req", "-in", "client.csr", *of_authority, "-out", "client.pem")
    return folder / "ca.pem", folder / "client.pem", folder / "client.key"


def test_client_certificates(tmp_path):
    authority, certificate, key = make_client_certificate(tmp_path, "car-7")
    with Live(tmp_path / "store", tls=(*make_certificate(tmp_path), authority), is_open=False) as server:
        mine, other = (Tokens(server.store.database).create(name) for name in ("car-7", "car-8"))
        with pytest.raises(httpx.TransportError):
            server.http.get("/v1/model", headers={"Authorization": f"Bearer {mine}"})
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(certificate, key)
        with httpx.Client(base_url=server.url, verify=context) as known:
            assert known.get("/v1/model", headers={"Authorization": f"Bearer {mine}"}).status_code == 200
            assert known.get("/v1/model", headers={"Authorization": f"Bearer {other}"}).status_code == 403


def test_a_new_certificate_is_served_without_a_restart(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    certificate, key = make_certificate(first)
    with Live(tmp_path / "store", tls=(certificate, key)) as server:

        def served():
            return ssl.get_server_certificate(("127.0.0.1", server.port))

        assert served() == certificate.read_text()
        for old, new in zip((certificate, key), make_certificate(second), strict=True):
            old.write_bytes(new.read_bytes())
        assert served() == certificate.read_text()
        newest = (second / certificate.name).read_text()
        certificate.write_text("not a certificate")
        assert served() == newest  # the last good one
        certificate.unlink()
        assert served() == newest
        certificate.symlink_to(certificate)  # it cannot be looked at
        assert served() == newest
        wait_for(lambda: len(server.server.connections) == 0)


# -- backup


def test_a_backup_of_a_running_server_is_a_store(tmp_path):
    with Live(tmp_path / "store") as server:
        server.model()
        for number in range(3):
            epoch = server.engine.state.epoch
            assert server.update(near(server, 0, number), base_epoch=epoch, key=f"key-{number}").status_code == 200
        with Store.open(tmp_path / "store", own=False) as reader:
            made = backup(reader, tmp_path / "copy")
        assert made.epoch == server.engine.state.epoch
        server.update(near(server, 0, 9), base_epoch=server.engine.state.epoch, key="later")
        with Store.open(tmp_path / "copy") as copy:
            assert verify(copy).findings == []
            assert copy.recover().state.epoch == made.epoch
            assert copy.client("car-7") is not None
    with pytest.raises(ValueError, match="is not an empty folder"), Store.open(tmp_path / "store", own=False) as reader:
        backup(reader, tmp_path / "copy")
