"""What experiments say of results, in tables and in a few sentences."""

import re

import pytest

from cdfl.paper import EVERY_ROW, Cell, Results, resolve
from cdfl.paper.experiment import load_experiment
from cdfl.paper.results import stored

from .small import HEADER, empty, keep


def _table(text: str, place: int = 0) -> list[list[str]]:
    """The cells of a table in a report, its header first."""
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| ")]
    lines = [line for line in tables[place] if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table_1_is_one_table_beside_the_paper_and_stand_ins_are_not(tmp_path):
    results = empty(tmp_path)
    for seed, after in enumerate((0.79, 0.80)):
        keep(results, Cell("fashion-mnist-4", "paper-reading", seed=seed), after=after)
        keep(results, Cell("cifar-10-4", "paper-reading", seed=seed), after=after)
    keep(results, Cell("fashion-mnist-4", "default", "oracle"), after=0.9)
    text = load_experiment("table1").report(results)
    header, *lines = _table(text)
    rows = {tuple(line[:2]): dict(zip(header[2:], line[2:], strict=True)) for line in lines}
    assert [column for _, column in rows] == ["before", "after", "cluster"] * 2
    line = next(line for line in lines if line[:2] == ["FashionMNIST (4)", "after"])
    assert line[2:5] == [".795 ± .007", ".800 ± .006", "-.005 (-0.8)"]  # (.795 - .800) / .006
    assert rows["FashionMNIST (4)", "after"]["Oracle, `default`"] == ".900"
    assert rows["FashionMNIST (4)", "after"]["trials"] == "1-2"
    stand_in = next(line for line in lines if line[:2] == ["CIFAR-10 (4) †", "after"])
    assert stand_in[2:5] == [".795 ± .007", "-", "-"]
    apart = next(line for line in _table(text, 1) if line[:2] == ["CIFAR-100 (4)", "CIFAR-10 (4) †"])
    assert apart[2:] == [
        ".360 ± .029", ".376 ± .012", ".432 ± .019", ".337 ± .037", ".361 ± .015", ".430 ± .022", ".261 ± .034",
    ]  # fmt: skip
    assert text.count(".376 ± .012") == 1  # nowhere else
    for note in ("CIFAR-10 (10 classes)", "3,421 instead of 100,000 plate digits"):  # of what was not run as well
        assert note in text


def test_the_verdict_of_table_1_counts_and_names(tmp_path):
    results = empty(tmp_path)
    near = {"before": 0.765, "after": 0.8}
    for seed in (0, 1):
        keep(results, Cell("fashion-mnist-4", "paper-reading", seed=seed), **near)  # made-up clusters are far off
        keep(results, Cell("fashion-mnist-4", "paper-reading", "fedsoft", seed), before=0.7, after=0.7 + 0.2 * seed)
        keep(results, Cell("fashion-mnist-4", "paper-reading", "local-restart", seed), before=0.7, after=0.7)
        keep(results, Cell("fashion-mnist-4", "default", seed=seed), after=0.9)
        keep(results, Cell("fashion-mnist-4", "default", "fedasync", seed), after=0.8)
    keep(results, Cell("fashion-mnist-6", "default"), after=0.9)
    keep(results, Cell("fashion-mnist-6", "default", "fedasync"), after=0.95)
    keep(results, Cell("digit-recognition", "default"), after=0.9)
    keep(results, Cell("digit-recognition", "default", "fedasync"), after=0.8)
    text = load_experiment("table1").verdict(results)
    assert "within two of the paper's deviations: 2 of 3; beyond: FashionMNIST (4) cluster -" in text
    of_those = "of those where the paper says so"
    assert f"FedSoft-Async, {of_those}: 1 of 3; level: FashionMNIST (4) after, (4) cluster\n" in text
    assert f"above Local, {of_those}: 2 of 2\n" in text
    missed = "not above: FashionMNIST (4) before, (4) cluster, (6) before, (6) cluster"
    assert f"with `default` above the paper's: 2 of 6; {missed}\n" in text
    after = "CDFL with `default` after the reply against"
    assert f"rows of the paper's data, {after} FedAsync: 1 above, 1 lower in one trial\n" in text
    assert f"(†), {after} FedAsync: 1 higher in one trial\n" in text


def test_table_1_names_what_was_not_run_and_where_trials_are_few(tmp_path):
    table1, results = load_experiment("table1"), empty(tmp_path)
    for cell in table1.cells(2):
        if cell.scenario == "fashion-mnist-6" and (cell.preset, cell.seed) != ("default", 1):
            keep(results, cell)
    for seed in range(5):
        keep(results, Cell("cifar-10-2", "default", seed=seed))
    rest = "FashionMNIST (2), (3), (4), CIFAR-10 {}(3) †, (4) †, (6) †, MiniImageNet 32x32 (2) †, (3) †, (4) †, (6) †, "
    rest += "digits with fewer plates †"
    default = "FedSoft-Async, FedAsync, FedBuff, IFCA, Local (keeps), Oracle with `default` on CIFAR-10 (2) †"
    lines = table1.verdict(results).splitlines()
    with_cifar, without = rest.format("(2) †, "), rest.format("")
    expected = f"- not run: `paper-reading` on {with_cifar}; `default` on {without}; {default}; `paper` on {with_cifar}"
    assert expected in lines
    assert "- trials, where they are not 5: 1-2 on FashionMNIST (6)" in lines
    assert table1.report(results).count("not run: ") == 1


def test_rows_with_a_setting_of_their_own_are_shown_without_it_too(tmp_path):
    table1, results = load_experiment("table1"), empty(tmp_path)
    without = {"base_rate": 0.15, "cluster_step": "along", "measures": "plain"}
    asked = [cell for cell in table1.cells(1) if cell.changes]
    assert {cell.scenario for cell in asked} == {f"mini-imagenet-32px-{k}" for k in (2, 3, 4, 6)}
    assert all(cell.changes == without for cell in asked)
    for changes, ours, theirs in (({}, 0.2, 0.1), (without, 0.1, 0.3)):
        keep(results, Cell("mini-imagenet-32px-6", "default", "cdfl", changes=changes), after=ours)
        keep(results, Cell("mini-imagenet-32px-6", "default", "fedasync", changes=changes), after=theirs)
    keep(results, Cell("mini-imagenet-32px-6", "default", "fedasync", 1, without), after=0.4)
    text = table1.report(results)
    own, plain = "CDFL (towards, .3, relative)", "CDFL (along, .15, plain)"
    assert f"| row | seed | {own} | {plain} | FedAsync (.3) | FedAsync (.15) |" in text
    assert "| MiniImageNet 32x32 (6) † | 0 | .200 | .100 | .100 | .300 |" in text
    assert "| MiniImageNet 32x32 (6) † | 1 | - | - | - | .400 |" in text
    higher = f"{own} after the reply against {plain}: 1 higher in one trial"
    assert f"- rows with a setting of their own, {higher}; FedAsync (.15): 1 lower in one trial\n" in text


def test_the_papers_own_data_have_rows_for_who_asks(tmp_path):
    table1, results = load_experiment("table1"), empty(tmp_path)
    assert {cell.scenario for cell in table1.cells(1)} > set(table1.on_request) > {"cifar-100-4", "mini-imagenet-6"}
    keep(results, Cell("cifar-100-4", "paper-reading"), before=0.5)
    line = next(line for line in _table(table1.report(results)) if line[:2] == ["CIFAR-100 (4)", "before"])
    published = EVERY_ROW[6].published("cdfl", "before")
    assert line[2:4] == [".500", f"{published.mean:.3f} ± {published.deviation:.3f}".replace("0.", ".")]
    assert "CIFAR-100 (4) before +" in table1.verdict(results)


def test_table_1_that_is_complete_lacks_nothing(tmp_path):
    table1, results = load_experiment("table1"), empty(tmp_path)
    table = table1.cells.__globals__
    table["EVERY_ROW"] = table["EVERY_ROW"][:1]
    for cell in table1.cells(5):
        if cell.scenario == "fashion-mnist-2":
            keep(results, cell)
    assert "not run" not in table1.verdict(results)
    assert "trials, where" not in table1.verdict(results)


@pytest.mark.parametrize("smoke", [True, False])
@pytest.mark.parametrize("name", ["table1", "reading", "ablations", "adaptation"])
def test_smoke_runs_are_not_held_to_the_paper(tmp_path, name, smoke):
    experiment, results = load_experiment(name), empty(tmp_path)
    for cell in experiment.cells(1):
        if cell.scenario in (experiment.smoke_rows or [cell.scenario]):
            keep(results, cell, HEADER | {"smoke": smoke}, rounds=20 if name == "adaptation" else 6)
    text = experiment.report(results)
    assert (experiment.verdict(results) in text) is not smoke
    if name in ("table1", "reading"):
        assert bool(re.search(r"[+-]\d*\.\d", text)) is not smoke  # a difference
        assert (".800 ± .006" in text) is not smoke  # what the paper has


def test_table_1_shows_whatever_it_asks_for(tmp_path):
    experiment = load_experiment("table1")
    asked = [cell for cell in experiment.cells(1) if cell.scenario == "fashion-mnist-4"]
    assert len(asked) == 11
    for place, cell in enumerate(asked):
        results = empty(tmp_path / str(place))
        keep(results, cell, before=0.123)
        line = next(line for line in experiment.report(results).splitlines() if " before " in line)
        assert " .123 " in line, cell


def test_estimates_are_compared_apart_on_stand_ins(tmp_path):
    results = empty(tmp_path)
    for seed in (0, 1):
        for scenario, ours in (("fashion-mnist-4", 0.1), ("fashion-mnist-6", 0.3), ("digit-recognition", 0.1)):
            keep(results, Cell(scenario, "default", seed=seed), divergence=ours)
            keep(results, Cell(scenario, "default", "fedsoft", seed), divergence=0.2)
    text = load_experiment("estimation").verdict(results)
    assert "- `default`, rows of the paper's data: 1 of 2; above: FashionMNIST (6)\n" in text
    assert "- `default`, rows of stand-ins (†): 1 of 1\n" in text
    assert "paper-reading" not in text


def test_an_estimate_farther_than_equal_shares_is_named(tmp_path):
    results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-2", "default"), divergence=0.1, true_mixture=[0.7, 0.3], mixture=[0.4, 0.6])
    keep(results, Cell("fashion-mnist-6", "default"), divergence=0.1, true_mixture=[0.7, 0.3], mixture=[0.6, 0.4])
    text = load_experiment("estimation").verdict(results)
    assert "- CDFL, `default`: 1 of 2: FashionMNIST (2)\n" in text
    assert "- `default`: FashionMNIST (2) 0%, (6) 100%\n" in text
    assert "Not run" not in text


def test_estimates_that_some_rows_lack_are_named(tmp_path):
    results = empty(tmp_path)
    for scenario in ("fashion-mnist-2", "fashion-mnist-4", "cifar-10-2"):
        keep(results, Cell(scenario, "default"))
    keep(results, Cell("fashion-mnist-4", "default", "fedsoft"))
    text = load_experiment("estimation").verdict(results)
    assert text.endswith(":\n\n- FedSoft-Async, `default` on FashionMNIST (2), CIFAR-10 (2) †\n")


def test_a_cluster_that_nobody_is_taken_for_is_counted(tmp_path):
    results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-2", "default"), true_mixture=[0.5, 0.5], mixture=[0.88, 0.12])
    keep(results, Cell("fashion-mnist-3", "default"), true_mixture=[0.4, 0.4, 0.2], mixture=[0.8, 0.12, 0.08])
    text = load_experiment("estimation").verdict(results)
    assert text.endswith("all these uploads together:\n\n- `default`: FashionMNIST (2) 1 of 2\n")


def test_clusters_that_fall_on_the_way_are_told(tmp_path):
    results = empty(tmp_path)
    cell = Cell("fashion-mnist-4", "paper-reading")
    keep(results, cell)
    assert "- Trials, where they are not 5: 1 on FashionMNIST (4)\n" in load_experiment("over_time").verdict(results)
    results.find(cell).digest["clusters"] |= {"epoch": [0, 4, 8, 12], "accuracy": [0.8, 0.7, 0.75, 0.82]}
    experiment = load_experiment("over_time")
    header, line = _table(experiment.report(results))
    told = dict(zip(header, line, strict=True))
    assert [told[name] for name in ("trials", "clusters, start", "lowest", "end")] == ["1", ".800", ".700", ".820"]
    assert "FashionMNIST (4): .800 → .700 → .820" in experiment.verdict(results)


def test_ablations_say_what_became_of_the_claims(tmp_path):
    results = empty(tmp_path)
    name = "fashion-mnist-4-ablation"
    keep(results, Cell(name, "paper-reading"), after=0.8)
    keep(results, Cell(name, "paper-reading", changes={"proxy": 500}), after=0.795)
    keep(results, Cell(name, "paper-reading", changes={"num_clients": 1000}), after=0.75)
    text = load_experiment("ablations").verdict(results)
    assert "500 are enough (500 within .010 of 1000): holds for before (.000), after (.005), cluster (.000)\n" in text
    little = "more clients change little (1000 within .010 of 100):"
    assert f"{little} holds for before (.000), cluster (.000), not for after (.050)\n" in text
    assert "number of clients: 100 .800, 1000 .750" in text
    assert "- FashionMNIST (4), 1 of 3 trials; not run: size of proxy set: 2000, 4000; rho: 0.01, 0.5, 1.0; " in text
    assert "; number of clients: 250, 500; " in text
    assert text.endswith("; time model, `default`: uniform, sessions, few-active, exponential\n")
    assert "CIFAR-10" not in text  # nothing of it was run
    assert "small rho" not in text  # one value only
    assert "†" not in load_experiment("ablations").report(results)
    keep(results, Cell(name, "paper-reading", changes={"proximal_strength": 0.01}))
    clusters = results.find(Cell(name, "paper-reading", changes={"proximal_strength": 0.01})).end
    clusters["cluster"] += 0.1
    assert "a small rho serves clusters: holds" in load_experiment("ablations").verdict(results)
    clusters["cluster"] -= 0.2
    assert "a small rho serves clusters: does not hold" in load_experiment("ablations").verdict(results)


def test_no_setting_is_run_twice_for_two_questions():
    cells = load_experiment("ablations").cells(1)
    settings = [(cell.scenario, stored(resolve(cell, "cpu"))) for cell in cells]
    assert [one for place, one in enumerate(settings) if one in settings[:place]] == []


def test_readings_that_were_not_run_are_named(tmp_path):
    results = empty(tmp_path)
    reading = load_experiment("reading")
    for cell in reading.cells(1)[:-1]:
        keep(results, cell)
    keep(results, Cell("fashion-mnist-4", "paper-reading"))
    keep(results, Cell("fashion-mnist-6", "paper-reading"), HEADER | {"precision": "bfloat16"})
    text = reading.report(results)
    explained, _, _ = text.partition("\n|")
    assert explained.startswith("BASE: few active, Adam .001, min bars; what begins with BASE is this,")
    assert "26 of 27 readings were tried" in text
    assert "Not run: uniform, Adam .001, min bars, beta_0 .1, no staleness. Seed 0 of the search" in text
    assert "The search ran in float32. In Table 1 FashionMNIST (6) ran in bfloat16.\n" in text


def test_uploads_to_recover(tmp_path):
    """Jumps every 9 uploads of a client: replies fall to .4 and are back after three uploads."""
    experiment = load_experiment("adaptation")
    results: Results = empty(tmp_path)
    keep(results, Cell("fashion-mnist-4-sudden", "default"), HEADER)
    kept = results.find(Cell("fashion-mnist-4-sudden", "default"))
    after = [0.8] * 9 + [0.4, 0.6, 0.8] + [0.8] * 8
    kept.digest["updates"] |= {
        "clients": [4] * 20, "after": after, "before": [0.5] * 20, "held": [0.7] * 9 + [0.2] + [0.7] * 10,
    }  # fmt: skip
    line = next(line for line in experiment.report(results).splitlines() if line.startswith("| CDFL"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["CDFL", "1", ".800", ".200", ".500", ".400", ".400", "3.0"]


def test_both_presets_are_in_the_verdict_on_adaptation(tmp_path):
    results = empty(tmp_path)
    for preset, theirs in (("default", 0.7), ("paper-reading", 0.5)):
        for seed in (0, 1):
            for algorithm, after in (("cdfl", 0.6), ("fedsoft", theirs)):
                cell = Cell("fashion-mnist-4-sudden", preset, algorithm, seed)
                keep(results, cell, rounds=20, before=0.5, held=0.4, after=after)
    ours, theirs = load_experiment("adaptation").verdict(results).splitlines()
    assert ours.startswith("- FashionMNIST (4), `default` (2 trials): a jump costs CDFL's old model .200; .100 are")
    assert "that reply is below FedSoft-Async; more than one upload to recover: nobody" in ours
    assert "`paper-reading`" in theirs
    assert "that reply is above FedSoft-Async" in theirs
