import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdfl.server.blobs import FolderBlobs, RemoteBlobs, digest_in, digest_of, new_name, open_blobs
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreError, StoreUnavailable

from .ftp import FTP
from .toy import Toy, keep, same_state, stored_blobs


@pytest.fixture
def own_spool(tmp_path, monkeypatch):
    """A place of our own for what is spooled."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def memory_url(tmp_path, own_spool):
    """A file system in memory, empty."""
    return f"memory://{tmp_path.name}/models"


@pytest.fixture
def ftp(tmp_path_factory):
    """A file system behind a socket, empty."""
    with FTP(tmp_path_factory.mktemp("ftp")) as server:
        yield server


@pytest.fixture
def ftp_url(ftp, own_spool):
    return f"{ftp.url}/deep/models"


@pytest.fixture(params=["memory", "ftp"])
def remote_url(request):
    """An empty place that fsspec reaches, once of each kind."""
    return request.getfixturevalue(f"{request.param}_url")


def named(kind, content=b""):
    """A new name for a blob; the folder of blobs does not check what it says of the content."""
    return new_name(kind, digest_of(content))


def made(where):
    blobs = open_blobs(where)
    blobs.make()
    return blobs


@pytest.fixture(params=["folder", "memory", "ftp"])
def blobs(request, tmp_path):
    is_folder = request.param == "folder"
    return made(tmp_path / "deep" / "blobs" if is_folder else request.getfixturevalue(f"{request.param}_url"))


def test_asking_makes_nothing(tmp_path, remote_url):
    for where in (tmp_path / "typo", remote_url):
        assert open_blobs(where).read(named("store")) is None
    assert list(tmp_path.iterdir()) == []
    assert not open_blobs(remote_url).fs.exists(remote_url)


def test_many_threads_at_once(blobs):
    def come_and_go(number):
        name, body = named("reply"), b"%d" % number * 1000
        blobs.write(name, body)
        assert blobs.read(name) == body
        assert name in blobs.names()
        blobs.delete([name])
        return blobs.read(name)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(come_and_go, range(40))) == [None] * 40
    assert blobs.names() == []


def test_what_is_written_comes_back(blobs):
    assert blobs.names() == []
    first, second = named("reply"), named("reply")
    blobs.write(first, b"whole")
    blobs.write(second, (b"in ", memoryview(b"pieces"), b""))
    blobs.sync_folder()
    blobs.check()
    assert (blobs.read(first), blobs.read(second)) == (b"whole", b"in pieces")
    assert blobs.read(named("reply")) is None
    assert sorted(blobs.names()) == sorted([first, second])
    blobs.delete([first, named("reply")])
    assert blobs.names() == [second]


def test_a_spooled_file_becomes_a_blob(blobs):
    spool = blobs.spool()
    spool.write_bytes(b"upload")
    name = named("upload")
    blobs.move_in(spool, name)
    assert blobs.read(name) == b"upload"
    assert not spool.exists()


def test_the_spool_is_emptied_and_is_ours_alone(blobs):
    spool = blobs.spool()
    spool.write_bytes(b"half an upload")
    assert stat.S_IMODE(spool.parent.stat().st_mode) == 0o700
    assert blobs.names() == []
    blobs.empty_spool()
    assert not spool.exists()
    with pytest.raises(StoreUnavailable):
        blobs.move_in(blobs.spool(), named("upload"))  # nothing was written there


def test_a_file_is_renamed_not_copied(tmp_path):
    blobs = made(tmp_path)
    spool = blobs.spool()
    spool.write_bytes(b"large")
    number = spool.stat().st_ino
    blobs.move_in(spool, "upload-1")
    assert (tmp_path / "upload-1").stat().st_ino == number


def test_many_pieces_and_short_writes(tmp_path, monkeypatch):
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda file, pieces: real(file, [pieces[0][:3]]))
    blobs = made(tmp_path)
    blobs.write("reply-1", [b"%d" % number * 2 for number in range(1000)])
    assert blobs.read("reply-1") == b"".join(b"%d" % number * 2 for number in range(1000))


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    blobs = made(tmp_path)
    monkeypatch.setattr(
        os, "writev", lambda file, pieces: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(StoreUnavailable, match=f"the folder {tmp_path} cannot be used now: .*No space left on device"):
        blobs.write("reply-1", b"reply")
    assert list((tmp_path / "spool").iterdir()) == blobs.names() == []


@pytest.mark.parametrize("scheme", ["file://", "local://", ""])
def test_a_folder_by_any_name_is_synced(tmp_path, scheme):
    assert isinstance(open_blobs(f"{scheme}{tmp_path}"), FolderBlobs)


def test_other_places_need_fsspec_to_know_them(memory_url):
    assert isinstance(open_blobs(memory_url), RemoteBlobs)
    with pytest.raises(StoreError, match="blobs cannot be kept in 'nowhere://x': Protocol not known: nowhere"):
        open_blobs("nowhere://x")


def test_a_spool_that_others_can_read_is_refused(remote_url):
    folder = made(remote_url).spool().parent
    folder.chmod(0o755)
    with pytest.raises(StoreError, match="is not a private folder of this user; delete it, or set TMPDIR"):
        made(remote_url)


def test_a_place_that_cannot_be_reached(memory_url, monkeypatch):
    blobs = made(memory_url)

    def away(*_, **__):
        raise ConnectionError("no route to host")

    for method in ("pipe_file", "put_file", "cat_file", "rm_file", "find", "info"):
        monkeypatch.setattr(type(blobs.fs), method, away)
    spool = blobs.spool()
    spool.write_bytes(b"upload")
    for attempt in (
        lambda: blobs.write("reply-1", b"reply"),
        lambda: blobs.move_in(spool, "upload-1"),
        lambda: blobs.read("reply-1"),
        lambda: blobs.delete(["reply-1"]),
        blobs.names,
        blobs.check,
    ):
        with pytest.raises(StoreUnavailable, match="cannot be reached now: no route to host"):
            attempt()
    assert spool.exists()


def test_a_connection_that_was_cut_is_made_again(ftp, own_spool):
    blobs = made(f"{ftp.url}/models")
    blobs.write("reply-1", b"reply")
    ftp.stop()
    for attempt in (lambda: blobs.read("reply-1"), lambda: blobs.delete(["reply-1"]), blobs.names, blobs.check):
        with pytest.raises(StoreUnavailable, match="cannot be reached now: "):
            attempt()
    with pytest.raises(StoreUnavailable, match=rf"blobs in ftp://127.0.0.1:{ftp.port}/models cannot be reached now: "):
        open_blobs(f"{ftp.url}/models")
    ftp.start()
    assert blobs.read("reply-1") == b"reply"
    blobs.check()


def test_a_password_is_not_shown(ftp, own_spool):
    with pytest.raises(StoreUnavailable, match=r"^blobs in ftp://127.0.0.1:\d+/models cannot be reached now: 530 "):
        open_blobs(f"{ftp.url}/models".replace("secret", "wrong"))
    with pytest.raises(StoreError, match=r"^blobs cannot be kept in 'nowhere://bucket/models'"):
        open_blobs("nowhere://me:secret@bucket/models")


def test_a_store_with_blobs_far_away(store_url, remote_url):
    with Store.open(store_url, remote_url) as store:
        toy = Toy(store)
        toy.upload("car-7", "car-8")
        toy.snapshot()
        toy.upload("car-7")
        assert len(stored_blobs(store, "upload")) == 1
        assert len(stored_blobs(store, "snapshot")) == 6
        orphan = keep(store, b"never committed")
    with Store.open(store_url, remote_url) as store:
        assert same_state(store.recover().state, toy.state)
        assert orphan not in store.blobs.names()
        store.forget("car-7", toy.state)
        assert len(stored_blobs(store, "reply")) == 1


def test_a_copy_outlives_what_it_was_made_of(blobs):
    first, second = new_name("reply", digest_of(b"whole")), new_name("base", digest_of(b"whole"))
    blobs.write(first, (b"wh", memoryview(b"ole")))
    assert blobs.copy(first, second)
    blobs.sync_folder()
    blobs.delete([first])
    assert blobs.read(second) == b"whole"
    assert digest_in(second) == digest_of((b"wh", memoryview(b"ole")))
    assert not blobs.copy(first, named("base"))
    assert blobs.names() == [second]


def test_a_view_is_memory_that_can_be_written_to(blobs):
    name, empty = named("reply"), named("reply")
    blobs.write(name, b"whole")
    blobs.write(empty, b"")
    view = blobs.view(name)
    blobs.delete([name])
    view[0:1] = b"W"
    assert bytes(view) == b"Whole"
    assert bytes(blobs.view(empty)) == b""
    assert blobs.view(name) is None


def test_a_file_system_that_cannot_copy(ftp_url):
    blobs = made(ftp_url)
    blobs.write(first := named("reply"), b"whole")
    with pytest.raises(NotImplementedError):
        blobs.fs.cp_file(first, named("base"))
    assert blobs.copy(first, second := named("base"))
    assert blobs.read(second) == b"whole"
    assert not blobs.copy(named("reply"), named("base"))
