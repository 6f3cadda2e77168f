"""Table 1: beside the paper, counts of what holds, rivals."""

import pytest

from experiments import table1
from experiments.harness import EVERY_ROW, RunKey
from tests.experiments.small import HEADER, empty, keep, table


def test_it_is_one_table_beside_the_paper_and_stand_ins_are_not_compared(tmp_path):
    results = empty(tmp_path)
    for seed, after in enumerate((0.79, 0.80)):
        keep(results, RunKey("fashion-mnist-4", "paper-reading", seed=seed), after=after)
        keep(results, RunKey("cifar-10-4", "paper-reading", seed=seed), after=after)
    keep(results, RunKey("fashion-mnist-4", "default", "oracle"), after=0.9)
    text = table1.report(results)
    header, *lines = table(text)
    rows = {tuple(line[:2]): dict(zip(header[2:], line[2:], strict=True)) for line in lines}
    assert [column for _, column in rows] == ["before", "after", "cluster"] * 2
    line = next(line for line in lines if line[:2] == ["FashionMNIST (4)", "after"])
    assert line[2:5] == [".795 ± .007", ".800 ± .006", "-.005 (-0.8)"]  # (.795 - .800) / .006
    assert rows["FashionMNIST (4)", "after"]["Oracle, `default`"] == ".900"
    assert rows["FashionMNIST (4)", "after"]["trials"] == "1-2"
    stand_in = next(line for line in lines if line[:2] == ["CIFAR-10 (4) †", "after"])
    assert stand_in[2:5] == [".795 ± .007", "-", "-"]
    assert table(text, 1)[1][0] == "CIFAR-100"  # what † stands for
    apart = next(line for line in table(text, 2) if line[:2] == ["CIFAR-100 (4)", "CIFAR-10 (4) †"])
    assert apart[2:] == [
        ".360 ± .029", ".376 ± .012", ".432 ± .019", ".337 ± .037", ".361 ± .015", ".430 ± .022", ".261 ± .034",
    ]  # fmt: skip
    assert text.count(".376 ± .012") == 1  # nowhere else


def test_counts_and_rivals(tmp_path):
    results = empty(tmp_path)
    near = {"before": 0.765, "after": 0.8}
    for seed in (0, 1):
        keep(results, RunKey("fashion-mnist-4", "paper-reading", seed=seed), **near)  # made-up clusters are far off
        keep(results, RunKey("fashion-mnist-4", "paper-reading", "fedsoft", seed), before=0.7, after=0.7 + 0.2 * seed)
        keep(results, RunKey("fashion-mnist-4", "paper-reading", "local", seed), before=0.7, after=0.7)
        keep(results, RunKey("fashion-mnist-4", "default", seed=seed), after=0.9)
        keep(results, RunKey("fashion-mnist-4", "default", "fedasync", seed), after=0.8)
    keep(results, RunKey("fashion-mnist-6", "default"), after=0.9)
    keep(results, RunKey("fashion-mnist-6", "default", "fedasync"), after=0.95)
    keep(results, RunKey("digit-recognition", "default"), after=0.9)
    keep(results, RunKey("digit-recognition", "default", "fedasync"), after=0.8)
    text = table1.report(results)
    within, fedsoft, local, better = (line[1:] for line in table(text, 3)[1:])
    assert within[:2] == ["2", "3"]
    assert within[2].startswith("beyond: FashionMNIST (4) cluster -")
    assert fedsoft == ["1", "3", "level: FashionMNIST (4) after, (4) cluster"]
    assert local == ["2", "2", ""]
    missed = "not above: FashionMNIST (4) before, (4) cluster, (6) before, (6) cluster"
    assert better == ["2", "6", missed]
    rivals = {line[0]: line[1:] for line in table(text, 4)[1:]}
    outcomes = ["FashionMNIST (4)", "", "", "digits with fewer plates †", "FashionMNIST (6)"]
    assert rivals["FedAsync, `default`"] == outcomes
    assert list(rivals) == ["FedSoft-Async, `paper-reading`", "Local, `paper-reading`", "FedAsync, `default`"]


def test_rows_with_their_own_settings_are_also_shown_without_them(tmp_path):
    results = empty(tmp_path)
    without = {"base_rate": 0.15, "cluster_step": "along", "measures": "plain"}
    asked = [key for key in table1.run_keys(1) if key.changes]
    assert {key.scenario for key in asked} == {f"mini-imagenet-32px-{k}" for k in (2, 3, 4, 6)}
    assert all(key.changes == without for key in asked)
    for changes, ours, theirs in (({}, 0.2, 0.1), (without, 0.1, 0.3)):
        keep(results, RunKey("mini-imagenet-32px-6", "default", "cdfl", changes=changes), after=ours)
        keep(results, RunKey("mini-imagenet-32px-6", "default", "fedasync", changes=changes), after=theirs)
    keep(results, RunKey("mini-imagenet-32px-6", "default", "fedasync", 1, without), after=0.4)
    text = table1.report(results)
    own, plain = "CDFL (towards, .3, relative)", "CDFL (along, .15, plain)"
    assert f"| row | seed | {own} | {plain} | FedAsync (.3) | FedAsync (.15) |" in text
    assert "| MiniImageNet 32x32 (6) † | 0 | .200 | .100 | .100 | .300 |" in text
    assert "| MiniImageNet 32x32 (6) † | 1 | - | - | - | .400 |" in text


def test_the_papers_own_data_have_rows_on_request(tmp_path):
    results = empty(tmp_path)
    on_request = set(table1.EXPERIMENT.on_request)
    assert {key.scenario for key in table1.run_keys(1)} > on_request > {"cifar-100-4", "mini-imagenet-6"}
    keep(results, RunKey("cifar-100-4", "paper-reading"), before=0.5)
    line = next(line for line in table(table1.report(results)) if line[:2] == ["CIFAR-100 (4)", "before"])
    published = EVERY_ROW[6].published("cdfl", "before")
    assert line[2:4] == [".500", f"{published.mean:.3f} ± {published.deviation:.3f}".replace("0.", ".")]
    assert any(name.startswith("CIFAR-100 (4) before +") for name in table1.near(results))


def test_smoke_runs_are_not_compared_with_the_paper(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "paper-reading"), HEADER | {"smoke": True})
    assert ".800 ± .006" not in table1.report(results)


def test_every_run_of_a_row_is_in_the_table(tmp_path):
    asked = [key for key in table1.run_keys(1) if key.scenario == "fashion-mnist-4"]
    assert len(asked) == 11
    for place, key in enumerate(asked):
        results = empty(tmp_path / str(place))
        keep(results, key, before=0.123)
        line = next(line for line in table1.report(results).splitlines() if " before " in line)
        assert " .123 " in line, key


def test_rivals_are_drawn_seed_by_seed(tmp_path):
    results = empty(tmp_path)
    for seed, after in enumerate((0.5, 0.9)):
        keep(results, RunKey("digit-recognition", "default", seed=seed), after=after)
    assert table1.draw(results, tmp_path) == []  # no rival
    keep(results, RunKey("digit-recognition", "default", "oracle", 1), after=0.8)
    assert table1.draw(results, tmp_path) == ["table1-rivals"]
    row = next(row for row in EVERY_ROW if row.scenario == "digit-recognition")
    assert table1._gaps(results, row, "default", "oracle") == pytest.approx([-0.1])
