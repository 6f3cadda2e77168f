"""A run in Python: its scores, tables, pictures and models."""

import io
import re
import subprocess
import sys

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import cdfl
from cdfl.core import flatten
from cdfl.report import progress_display
from cdfl.run_folder import RunFolder

from .problems import QUICK, lines

SIZE = {"num_clients": 4, "num_uploads": 12, **QUICK}


@pytest.fixture(scope="module")
def run():
    return cdfl.run(lines(), **SIZE)


def test_what_it_says_of_itself(run):
    assert (run.name, run.algorithm, run.seed, run.clusters) == ("lines", "cdfl", 0, ["up", "down"])
    assert run.metrics == {"rmse": False, "r2": True}
    assert run.summary.uploads == len(run.uploads) == 12
    assert re.fullmatch(
        r"Run\(cdfl on lines, seed 0: 12 uploads; "
        r"rmse old model [\d.]+, own training [\d.]+, new model [\d.]+, clusters [\d.]+\)",
        repr(run),
    )
    assert run.config["scenario"]["name"] == "lines"
    assert len(run.separation) == 2


def test_html_for_notebooks(run):
    page = run._repr_html_()
    assert "<th>rmse (lower is better)</th><th>r2</th>" in page
    assert "new model" in page
    assert "<script" not in cdfl.Run(run.config, run.events)._repr_html_()
    unfinished = cdfl.Run(run.config, run.events[:-1])
    assert unfinished._repr_html_() == "<p>Run(cdfl on lines, seed 0: not finished)</p>"
    assert unfinished.notes == run.notes


def test_a_frame(run):
    frame = run.to_frame()
    assert len(frame) == 12
    assert {"epoch", "client", "after", "r2 after", "true up", "estimated down", "rate up"} <= set(frame.columns)
    assert frame["after"].tolist() == [upload.after for upload in run.uploads]


def test_a_frame_needs_pandas(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"to_frame\(\) needs pandas: pip install pandas"):
        run.to_frame()


def test_a_picture(run):
    figure = run.plot(against=[run])
    assert isinstance(figure, Figure)
    titles = [axes.get_title("left") for axes in figure.axes]
    for words in ("1  Client", "2  Estimate", "3  "):
        assert sum(title.startswith(words) for title in titles) == 1
    [scores] = [axes for axes in figure.axes if axes.get_title("left").startswith("3 ")]
    assert scores.get_ylabel() == "rmse (lower is better), held-out data"
    assert len(scores.texts) == 3  # a name for each curve: held, before, after
    figure.savefig(io.BytesIO())


def test_models(run):
    models = run.cluster_models
    assert list(models) == ["up", "down"]
    assert all(isinstance(model, nn.Linear) and not model.training for model in models.values())
    personal = run.personal_model(3)
    assert personal(torch.zeros(1, 2)).shape == (1, 1)
    last = [upload for upload in run.uploads if upload.client == 3][-1]
    assert last.after > 0
    with pytest.raises(ValueError, match=r"there is no model of client 9; there are 0, 1, 2, 3; a client"):
        run.personal_model(9)


def test_one_model_for_all():
    run = cdfl.run(lines(), algorithm="fedasync", **SIZE)
    assert list(run.cluster_models) == ["all"]


class TestFolders:
    def test_what_was_saved_is_read_again(self, run, tmp_path):
        run.save(tmp_path / "run")
        again = cdfl.load(tmp_path / "run", model=lines())
        assert again.events == run.events
        assert again.config == run.config
        assert repr(again) == repr(run)
        for name, model in run.cluster_models.items():
            assert torch.equal(flatten(model), flatten(again.cluster_models[name]))
        assert torch.equal(flatten(run.personal_model(2)), flatten(again.personal_model(2)))
        with pytest.raises(FileExistsError, match="already holds a run"):
            run.save(tmp_path / "run")

    def test_a_run_writes_its_folder_itself(self, run, tmp_path):
        made = cdfl.run(lines(), out=tmp_path / "run", **SIZE)
        read = cdfl.load(tmp_path / "run", model=nn.Linear(2, 1))
        assert read.events == made.events == RunFolder(tmp_path / "run").events()
        assert torch.equal(flatten(read.cluster_models["up"]), flatten(made.cluster_models["up"]))
        assert torch.equal(flatten(read.personal_model(0)), flatten(made.personal_model(0)))
        with pytest.raises(ValueError, match="there is no model of client 99; there are 0, 1"):
            read.personal_model(99)

    def test_a_network_that_is_not_known(self, run, tmp_path):
        run.save(tmp_path / "run")
        with pytest.raises(ValueError, match=r"the network of this run is not known here; load it with cdfl.load"):
            _ = cdfl.load(tmp_path / "run").cluster_models
        with pytest.raises(ValueError, match="the model given is not that of the run: its tensors differ"):
            cdfl.load(tmp_path / "run", model=nn.Linear(3, 1))

    def test_networks_of_the_library_are_known(self, tmp_path):
        cdfl.run("diabetes-2", out=tmp_path / "run", num_uploads=2, **QUICK)
        assert list(cdfl.load(tmp_path / "run").cluster_models) == ["sex=1", "sex=2"]

    def test_no_run(self, tmp_path):
        with pytest.raises(ValueError, match=r"holds no run; expected a folder with events.jsonl"):
            cdfl.load(tmp_path)

    def test_a_damaged_model_is_refused(self, run, tmp_path):
        run.save(tmp_path / "run")
        file = tmp_path / "run" / "models" / "cluster-0.safetensors"
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
        with pytest.raises(ValueError, match=r"cluster-0.safetensors was changed after it was written"):
            cdfl.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("lr", "learning_rate"), ("uploads", "num_uploads"), ("clients", "num_clients"), ("epochs", "local_epochs")],
)
def test_a_keyword_that_others_use(wrong, meant):
    with pytest.raises(ValueError, match=rf"there is no option or setting '{wrong}'; did you mean {meant}\?"):
        cdfl.run("digits-4", **{wrong: 1})


def test_a_keyword_that_nobody_uses():
    with pytest.raises(ValueError, match="there is no option or setting 'xyzzy'; settings are loss_weight, gap_weight"):
        cdfl.run("digits-4", xyzzy=1)


def test_without_scikit_learn_the_message_says_what_to_install():
    program = "import sys; sys.modules['sklearn'] = None; import cdfl; cdfl.run('digits-4')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)  # noqa: S603
    assert done.returncode
    assert done.stderr.strip().endswith("the dataset digits comes with scikit-learn: pip install 'cdfl[sim]'")


def test_a_cut_proxy_set_is_told(capsys):
    cdfl.run(lines(sizes=cdfl.Sizes(low=4, high=8, test=4, pretraining=10, proxy=20)), **SIZE)
    said = capsys.readouterr().err
    assert "up: proxy set of 7 samples instead of 20: the test half has only 30; provide more, or set" in said
    cdfl.run(lines(sizes=cdfl.Sizes(low=4, high=8, test=4, pretraining=10, proxy=20)), progress=False, **SIZE)
    assert capsys.readouterr().err == ""


class TestProgress:
    def test_a_line_in_a_notebook(self, run):
        stream = io.StringIO()
        line = progress_display.Line(12, stream)
        with line:
            for event in run.events:
                line._written = 0.0
                line.show(event)
        said = stream.getvalue()
        assert "reading data" in said
        assert re.search(r"12 of 12 uploads, about 0 s left  rmse: old model [\d.]+, new model [\d.]+", said)
        assert said.endswith("\r")

    def test_a_bar_in_a_terminal(self, run):
        from rich.console import Console

        stream = io.StringIO()
        console = Console(file=stream, force_terminal=True, width=160)
        with progress_display.Bar(12, console) as bar:
            for event in run.events:
                bar.show(event)
        assert "12/12" in stream.getvalue()
        assert "rmse: old model" in stream.getvalue()

    def test_what_suits_the_place(self, monkeypatch):
        assert isinstance(progress_display.display(3, False), progress_display.Nothing)
        assert isinstance(progress_display.display(3, True), progress_display.Bar)
        assert isinstance(progress_display.display(3), progress_display.Lines)  # no terminal here
        monkeypatch.setattr(progress_display, "in_notebook", lambda: True)
        assert isinstance(progress_display.display(3), progress_display.Line)
        assert isinstance(progress_display.display(3, False), progress_display.Nothing)
