from pathlib import Path

import numpy as np
import pytest

from cdfl.data import SOURCES, DataError, data_folder, load_source
from cdfl.data.sources import check, fetch
from cdfl.data.sources.npz_and_mosaics import write_npz


def test_where_datasets_live(monkeypatch, tmp_path):
    monkeypatch.setenv("CDFL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("CDFL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "cdfl"


def test_every_address_has_a_checksum_and_a_publisher():
    for source in SOURCES.values():
        assert source.published.startswith("https://")
        assert source.bundled or source.files or source.by_hand
        for file in source.files:
            assert len(file.md5) == 32
            assert all(url.endswith(file.name) for url in file.urls)


def test_what_is_missing_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"mnist is not in \S*; run `cdfl data fetch mnist --data-dir \S*`, or fill"):
        load_source("mnist", tmp_path)
    with pytest.raises(DataError, match=r"mnist is not in .*gone, and there is no such folder; run"):
        load_source("mnist", tmp_path / "gone")
    with pytest.raises(DataError, match=r"ccpd is not in .*; put the folder ccpd_base of CCPD2019.tar.xz .* into"):
        load_source("ccpd", tmp_path)
    with pytest.raises(DataError, match="there is no dataset 'nmist'; expected one of digits, mnist"):
        load_source("nmist", tmp_path)
    (tmp_path / "svhn").mkdir()
    with pytest.raises(DataError, match=r"svhn is not in .*; run `cdfl data fetch svhn --data-dir .*`, or fill"):
        load_source("svhn", tmp_path)
    with pytest.raises(DataError, match=r"there is no file or folder my/table\.csv; this process runs in /"):
        load_source("my/table.csv")
    with pytest.raises(DataError, match="there is no dataset 'x'"):
        fetch("x", tmp_path)
    with pytest.raises(DataError, match="mini-imagenet has no address to download from; put the 100 class folders"):
        fetch("mini-imagenet", tmp_path)


def test_a_users_own_file(tmp_path, make_dataset):
    write_npz(tmp_path / "mine.npz", make_dataset(num_classes=7))
    data = load_source(str(tmp_path / "mine.npz"))
    assert (data.name, data.num_classes) == ("mine", 7)


def test_check_counts_and_compares(tmp_path, write_idx):
    folder = tmp_path / "mnist"
    folder.mkdir()
    assert check("digits").verdict == "ok"
    for stem, count in (("train", 20), ("t10k", 9)):
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", np.zeros((count, 28, 28)))
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    report = check("mnist", tmp_path)
    assert report.verdict == "differs from what was published"
    assert report.lines[0] == "20 train images, 2 to 2 in a class"
    assert "train-images-idx3-ubyte.gz is readable, but its MD5 is not the published" in report.lines[2]
    assert "60,000 train images were published, 20 are here" in report.lines
    assert "class 9 has no test image" in report.lines
    report = check("svhn", tmp_path)
    assert (report.verdict, report.folder) == ("not here", None)
    assert "svhn is not in" in report.lines[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [("en.txt", "its folder: each NAME.txt there is a cluster"), ("shop.xlsx", "a .csv file, or in Python a pandas")],
)
def test_kinds_of_files_that_are_not_read(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(DataError, match=rf"{name} is a {Path(name).suffix} file; expected {words}"):
        load_source(str(tmp_path / name))


def test_a_csv_file_in_capitals(tmp_path):
    (tmp_path / "SHOP.CSV").write_text("a,b\n1,2\n")
    assert list(load_source(str(tmp_path / "SHOP.CSV"))) == ["a", "b"]
