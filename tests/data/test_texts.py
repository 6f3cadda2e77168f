"""Texts: samples are tokens and those that follow; no paragraph is on both sides."""

import pytest
import torch

from cdfl.data import DataError, Texts
from cdfl.data.texts import _paragraphs

LINES = [f"Paragraph {number} says {'abcdefghij'[number % 10] * 30}." for number in range(40)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "two.txt").write_text("\n\n".join(line.upper() for line in LINES), encoding="utf-8")
    return tmp_path


def build(folder, **changes):
    return Texts(folder, **{"length": 16, **changes}).build(lambda source: folder)


def everything(cluster):
    data = cluster.dataset
    return torch.cat([data.train_inputs, data.test_inputs]), torch.cat([data.train_targets, data.test_targets])


def test_a_target_is_the_next_character(folder):
    one, two = build(folder)
    assert (one.name, two.name) == ("one", "two")
    inputs, targets = everything(one)
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert one.dataset.num_classes == two.dataset.num_classes  # one numbering for all
    assert int(inputs.max()) < one.dataset.num_classes
    assert one.dataset.input_shape == (16,)


def test_no_paragraph_is_on_both_sides(folder):
    data = build(folder)[0].dataset
    assert not set(data.train_groups.tolist()) & set(data.test_groups.tolist())
    assert len(data.test_groups.unique()) == 10  # a quarter of 40


def test_paragraphs():
    assert _paragraphs("One\nline.\n\n Two. \n") == ["One line.", "Two."]
    assert _paragraphs("One.\nTwo.") == ["One.", "Two."]


def test_short_paragraphs_go_together(folder):
    whole = build(folder, length=64)[0].dataset
    assert len(whole.train_groups.unique()) + len(whole.test_groups.unique()) == 20  # two lines each


def test_rare_characters_are_one_token(folder):
    few = build(folder, num_tokens=5)[0].dataset
    assert few.num_classes == 5
    assert (few.train_inputs == 0).any()


def test_words(folder):
    data = build(folder, unit="words", length=2, num_tokens=50)[0].dataset
    assert data.num_classes > 10
    assert data.input_shape == (2,)


def test_folders_of_files_and_a_choice(folder):
    (folder / "three").mkdir()
    for number in range(3):
        (folder / "three" / f"{number}.txt").write_text("\n".join(LINES))
    assert [cluster.name for cluster in build(folder)] == ["one", "two", "three"]
    assert [cluster.name for cluster in build(folder, names=("three", "one"))] == ["three", "one"]
    assert Texts(folder, ("a", "b")).num_clusters == 2
    assert Texts(folder).num_clusters == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"names": ("four",)}, "has no text 'four'; there are one, two"),
        ({"names": ("tow",)}, r"has no text 'tow'; there are one, two; did you mean two\?"),
        ({"length": 500}, "text 'one' has 3 paragraphs of more than 500 characters; expected at least 8: add text, or"),
    ],
)
def test_what_is_refused(folder, changes, words):
    with pytest.raises(DataError, match=words):
        build(folder, **changes)


def test_files_that_are_no_texts(folder, tmp_path):
    (folder / "one.txt").write_bytes(b"caf\xe9" * 100)
    with pytest.raises(DataError, match=r"one.txt is not in UTF-8 \(invalid continuation byte at byte 3\); convert it"):
        build(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"has no texts; expected NAME.txt for each cluster, or NAME/"):
        build(empty)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match='unit is \'letters\'; expected "characters" or "words"'):
        Texts("folder", unit="letters")
    with pytest.raises(ValueError, match="length is 0; expected at least 1"):
        Texts("folder", length=0)


def test_the_handbook(real_data):
    folder = real_data / "handbook"
    if not folder.is_dir():
        pytest.skip("no handbook in the data folder")
    clusters = Texts("handbook", ("en", "de")).build(lambda source: folder)
    assert [len(everything(cluster)[0]) > 8_000 for cluster in clusters] == [True, True]
    assert clusters[0].dataset.num_classes == 110
