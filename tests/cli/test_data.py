import hashlib
from dataclasses import replace

import numpy as np
from typer.testing import CliRunner

from cdfl.cli import data
from cdfl.cli.scenarios import scenarios
from cdfl.data import Dataset
from cdfl.data.sources import SOURCES, RemoteFile
from cdfl.data.sources.npz_and_mosaics import write_npz
from cdfl.scenarios import load_scenario


def call(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(data.app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


def test_list_names_every_dataset(tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "data_batch_1.bin").touch()
    (tmp_path / "usps").mkdir()  # but nothing in it
    code, output = call("list", "--data-dir", tmp_path)
    assert code == 0
    assert all(name in output for name in SOURCES)
    assert "cifar-10 objects in 10 classes, 32x32 colour 50,000 10,000 yes fetch" in output
    assert "usps handwritten digits of letters, 16x16 grey 7,291 2,007 - fetch" in output
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


def test_fetch_without_a_network_leaves_no_files(tmp_path, monkeypatch):
    files = tuple(replace(file, urls=("http://127.0.0.1:9/usps",)) for file in SOURCES["usps"].files)
    monkeypatch.setitem(SOURCES, "usps", replace(SOURCES["usps"], files=files))
    code, output = call("fetch", "usps", "--data-dir", tmp_path / "new" / "data")
    assert code == 2
    assert "cannot be read (ConnectionError). Nothing was kept" in output
    assert list(tmp_path.iterdir()) == []


def test_check_has_three_verdicts(tmp_path):
    (tmp_path / "mini-imagenet").mkdir()
    half = np.zeros((100, 8, 8, 3), np.uint8), np.arange(100)
    write_npz(tmp_path / "mini-imagenet" / "data.npz", Dataset.from_arrays("some", half, half, 100))
    for name, code, words in [
        ("digits", 0, "1,297 train images, 126 to 132 in a class"),
        ("digits", 0, "digits: ok"),
        ("mini-imagenet", 1, "48,000 train images were published, 100 are here"),
        ("mini-imagenet", 1, "mini-imagenet: differs from what was published"),
        ("ccpd", 1, "ccpd is not in"),
        ("ccpd", 1, "ccpd: not here"),
    ]:
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


def test_sheet_refuses_what_it_cannot_write(tmp_path):
    (tmp_path / "file").touch()
    code, output = call("sheet", "digits-4", "--out", tmp_path / "file")
    assert code == 2
    assert f"cdfl: {tmp_path / 'file' / 'digits-4.png'} cannot be written: " in output
    assert "; choose another folder" in output
    code, output = call("sheet", "digits-4", "--out", tmp_path, "--columns", "101")
    assert code == 2
    assert "--columns" in output
    assert " 100 " in output  # the bound, in the words of typer
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import replace\nfrom cdfl.scenarios import load_scenario\n"
        'problem = replace(load_scenario("digits-4"), name="../evil")\n'
    )
    code, output = call("sheet", mine, "--out", tmp_path / "new")
    assert code == 2
    assert "a problem has the name '../evil'" in output


def test_sheet_prints_notes(tmp_path):
    path = tmp_path / "large.toml"
    path.write_text(
        'model = "small-cnn"\nnum_clients = 1\nnum_uploads = 1\n[clusters]\nkind = "shifts"\nsource = "digits"\n'
        "[sizes]\npretraining = 3000\n"
    )
    code, output = call("sheet", path, "--out", tmp_path)
    assert code == 0
    assert "large.png digits: pretraining set of 324 samples instead of 3,000" in output


def test_scenarios(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CDFL_DATA", str(tmp_path))
    scenarios()
    output = " ".join(capsys.readouterr().out.split())
    assert "digits-4 4 40 600 here 8x8 digits in 4 rotations, no download" in output
    assert "digit-recognition 3 100 4,000 - hand, house and licence-plate digits" in output
    (tmp_path / "elsewhere" / "fashion-mnist").mkdir(parents=True)
    (tmp_path / "elsewhere" / "fashion-mnist" / "train-images-idx3-ubyte.gz").touch()
    scenarios(tmp_path / "elsewhere")
    assert "fashion-mnist-4 4 80 2,000 here" in " ".join(capsys.readouterr().out.split())
    assert "fashion-mnist-4 4 80 2,000 -" in output
    assert load_scenario("digit-recognition").sources == ["mnist", "usps", "svhn", "ccpd"]


def test_check_says_whether_the_clusters_of_a_problem_can_be_told_apart(tmp_path):
    file = tmp_path / "rents.py"
    text = (
        "import cdfl, torch\n"
        "inputs = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))\n"
        "sides = {'up': (inputs, (inputs[:, 0] > 0).long()), 'down': (inputs, (inputs[:, 0] SIGN 0).long())}\n"
        "problem = cdfl.Problem(model='mlp', clusters=sides, settings={'batch_size': 8, 'separate_epochs': 10})\n"
    )
    file.write_text(text.replace("SIGN", "<"))
    code, output = call("check", file)
    assert code == 0, output
    assert output.startswith("2 clusters, inputs 2, 2 outputs")
    assert "loss on the proxy set of" in output
    assert output.endswith("the clusters can be told apart")
    same = tmp_path / "same_rents.py"
    same.write_text(text.replace("SIGN", ">"))
    code, output = call("check", same)
    assert code == 1
    assert "these clusters cannot be told apart: 'up' and 'down'" in output
