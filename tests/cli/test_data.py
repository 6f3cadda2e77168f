import hashlib
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cdfl.cli import data
from cdfl.cli.scenarios import scenarios, sources_of
from cdfl.data.sources import SOURCES, RemoteFile
from cdfl.scenarios import load_scenario


def call(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(data.app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


def test_list_names_every_dataset(tmp_path):
    (tmp_path / "cifar10").mkdir()
    code, output = call("list", "--data-dir", tmp_path)
    assert code == 0
    assert all(name in output for name in SOURCES)
    assert "cifar-10 objects in 10 classes, 32x32 colour 50,000 10,000 yes fetch" in output
    assert "ccpd digits of Chinese licence plates, cut to 32x32 colour 80,000 20,000 - by hand" in output


def test_fetch_and_its_failures(tmp_path, monkeypatch):
    assert call("fetch", "digits") == (0, "digits comes with scikit-learn")
    code, output = call("fetch", "ccpd", "--data-dir", tmp_path)
    assert code == 2
    assert "ccpd has no address to download from; put the folder ccpd_base" in output
    body = b"published"
    file = RemoteFile(
        "usps.bz2", ("http://127.0.0.1:9/usps.bz2",), hashlib.md5(body, usedforsecurity=False).hexdigest()
    )
    monkeypatch.setitem(SOURCES, "usps", replace(SOURCES["usps"], files=(file,)))
    (tmp_path / "usps").mkdir()
    (tmp_path / "usps" / "usps.bz2").write_bytes(body)  # there and intact: nothing to download
    assert call("fetch", "usps", "--data-dir", tmp_path) == (0, f"usps is in {tmp_path / 'usps'}")


@pytest.mark.parametrize(("name", "code", "words"), [("digits", 0, "digits: ok"), ("mnist", 1, "mnist is not in")])
def test_check(tmp_path, name, code, words):
    found, output = call("check", name, "--data-dir", tmp_path)
    assert found == code
    assert words in output


def test_sheet(tmp_path):
    pictures = [tmp_path / "new" / f"{name}.png" for name in ("digits-4", "digits-4-labels")]
    code, output = call("sheet", "digits-4", "digits-4-labels", "--out", tmp_path / "new")
    assert (code, output) == (0, " ".join(map(str, pictures)))
    assert all(1_000 < picture.stat().st_size < 300_000 for picture in pictures)
    code, output = call("sheet", "nothing", "--out", tmp_path)
    assert code == 2
    assert "there is no scenario 'nothing'" in output


def test_scenarios(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CDFL_DATA", str(tmp_path))
    scenarios()
    output = " ".join(capsys.readouterr().out.split())
    assert "digits-4 4 40 600 here 8x8 digits in 4 rotations, no download" in output
    assert "digit-recognition 3 100 4,000 - hand, house and licence-plate digits" in output
    assert sources_of(load_scenario("digit-recognition")) == ["mnist", "usps", "svhn", "ccpd"]
