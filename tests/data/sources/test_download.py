import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cdfl.data import DataError
from cdfl.data.sources.download import download
from cdfl.data.sources.source import RemoteFile, Source

BODY = bytes(range(256)) * 400


def source(*urls: str, md5: str | None = None) -> Source:
    wanted = md5 or hashlib.md5(BODY, usedforsecurity=False).hexdigest()
    file = RemoteFile("data.bin", urls, wanted)
    return Source("mine", "", 1, 1, 1, lambda folder: None, published="this test", files=(file,))


@pytest.mark.parametrize("progress", [False, True])
def test_a_file_is_fetched_once(tmp_path, web, progress, capsys):
    address, files, _ = web
    files["data.bin"] = BODY
    (path,) = download(source(f"{address}data.bin"), tmp_path / "new", progress)
    assert ("100%" in capsys.readouterr().err) == progress
    assert path.read_bytes() == BODY
    files.clear()  # a second fetch needs no server
    assert list(download(source(f"{address}data.bin"), tmp_path / "new")) == [path]


def test_the_next_address_is_tried(tmp_path, web):
    address, files, _ = web
    files["mirror"] = BODY
    (path,) = download(source(f"{address}gone", f"{address}mirror"), tmp_path)
    assert path.read_bytes() == BODY


def test_a_damaged_file_in_the_folder_is_replaced(tmp_path, web):
    address, files, _ = web
    files["data.bin"] = BODY
    (tmp_path / "data.bin").write_bytes(BODY[:-1])
    (path,) = download(source(f"{address}data.bin"), tmp_path)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("trouble", ["wrong checksum", "truncated", "missing", "no server"])
def test_trouble_gets_one_sentence_and_nothing_stays(tmp_path, web, trouble):
    address, files, broken = web
    if trouble != "missing":
        files["data.bin"] = BODY
    if trouble == "truncated":
        broken.add("data.bin")
    url = "http://127.0.0.1:9/data.bin" if trouble == "no server" else f"{address}data.bin"
    wanted = source(url, md5="0" * 32 if trouble == "wrong checksum" else None)
    message = "did not return the published bytes" if trouble == "wrong checksum" else "cannot be read|did not give"
    with pytest.raises(DataError, match=f"mine: .*({message}).*Nothing was kept; try again, or put data.bin into"):
        list(download(wanted, tmp_path / "new" / "mine"))
    assert list(tmp_path.iterdir()) == []


def test_what_came_before_trouble_stays(tmp_path, web):
    address, files, _ = web
    files["data.bin"] = BODY
    good = source(f"{address}data.bin")
    bad = RemoteFile("more.bin", (f"{address}gone",), "0" * 32)
    with pytest.raises(DataError, match=r"try again, or put more\.bin into"):
        list(download(replace(good, files=(*good.files, bad)), tmp_path / "mine"))
    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / "data.bin"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be made .* choose another one with --data-dir"):
        list(download(source("http://127.0.0.1:9/"), tmp_path / "file" / "folder"))


def test_without_pooch_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"downloads need pooch; run `pip install 'cdfl\[sim\]'`"):
        list(download(source("http://127.0.0.1:9/"), tmp_path))


def test_without_an_address_it_says_what_to_do():
    by_hand = Source("mine", "", 1, 1, 1, lambda folder: None, published="", by_hand="the photographs")
    with pytest.raises(DataError, match="mine has no address to download from; put the photographs into /there"):
        list(download(by_hand, Path("/there")))
