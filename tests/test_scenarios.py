import json
from dataclasses import replace

import pytest

from cdfl.core.paper_settings import PAPER
from cdfl.core.settings import Settings
from cdfl.data import DataError, Domains, PaperDrift, Rotations, Sizes, Sudden
from cdfl.models import MODELS
from cdfl.scenarios import Scenario, list_scenarios, load_scenario


def test_the_papers_rows_have_their_run_sizes():
    rows = {s.paper_row: s for s in list_scenarios() if s.paper_row is not None and s.name == s.paper_row}
    assert rows.keys() == PAPER.keys()
    for name, scenario in rows.items():
        assert scenario.drift == PaperDrift(0.4, 0.9)
        assert (scenario.sizes.low, scenario.sizes.high) == (500, 2000)
        assert (scenario.sizes.pretraining, scenario.sizes.proxy) == (3000, 1000)
        if name != "digit-recognition":
            each = 25 if name.startswith("fashion") else 20
            assert scenario.num_clients == 20 * scenario.num_clusters == 20 * int(name[-1])
            assert scenario.num_uploads == each * scenario.num_clients
            assert PAPER[name].rates.max_staleness == scenario.num_clients
    digits = rows["digit-recognition"]
    assert (digits.num_clusters, digits.num_clients, digits.num_uploads) == (3, 100, 4000)


@pytest.mark.parametrize(
    ("name", "clusters", "clients", "uploads"),
    [
        ("fashion-mnist-1", 1, 20, 500),
        ("cifar-100-1", 1, 20, 400),
        ("fashion-mnist-4-ablation", 4, 100, 2000),
        ("cifar-100-4-ablation", 4, 100, 1000),
        ("cifar-10-1", 1, 5, 100),
        ("cifar-10-4", 4, 20, 400),
        ("cifar-10-6", 6, 30, 600),
        ("mini-imagenet-32px-3", 3, 15, 300),
        ("mnist-4", 4, 80, 2000),
        ("fashion-mnist-4-labels", 4, 80, 2000),
        ("fashion-mnist-4-sudden", 4, 80, 2000),
    ],
)
def test_the_other_runs(name, clusters, clients, uploads):
    scenario = load_scenario(name)
    assert (scenario.num_clusters, scenario.num_clients, scenario.num_uploads) == (clusters, clients, uploads)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("fashion-mnist-4-sudden", "fashion-mnist-4"),
        ("fashion-mnist-4-ablation", "fashion-mnist-4"),
        ("fashion-mnist-1", "fashion-mnist-2"),
        ("cifar-10-6", "cifar-100-6"),
        ("mini-imagenet-32px-2", "mini-imagenet-2"),
        ("mnist-4", None),
        ("digits-4", None),
        ("fashion-mnist-4-labels", None),
    ],
)
def test_whose_printed_values_a_scenario_takes(name, row):
    assert load_scenario(name).paper_row == row


@pytest.mark.parametrize("scenario", list_scenarios(), ids=lambda scenario: scenario.name)
def test_every_scenario_is_whole(scenario):
    assert scenario.model in MODELS
    assert Settings(**scenario.settings)  # known names, sane values
    if scenario.name.startswith("digits-"):
        federation = scenario.federation(seed=1)
        images, labels = federation.fetch(federation.draw(5, 6).train)
        assert len(images) == len(labels) >= 20
        assert federation.notes == ()


@pytest.mark.parametrize("scenario", list_scenarios(), ids=lambda scenario: scenario.name)
def test_every_scenario_can_be_stored(scenario):
    plain = json.loads(json.dumps(scenario.to_dict()))
    assert (plain["name"], plain["num_clients"]) == (scenario.name, scenario.num_clients)
    assert plain["clusters"]["kind"] == type(scenario.clusters).__name__
    assert plain["drift"]["kind"] == type(scenario.drift).__name__


def test_a_toml_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("""
        model = "small-cnn"
        num_clients = 10
        num_uploads = 100
        [clusters]
        kind = "rotations"
        source = "digits"
        num_clusters = 2
        [drift]
        kind = "sudden"
        every = 3
        [sizes]
        low = 20
        high = 30
        [settings]
        batch_size = 16
    """)
    scenario = load_scenario(str(path))
    assert scenario.name == "mine"
    assert scenario.clusters == Rotations("digits", 2)
    assert scenario.drift == Sudden(every=3)
    assert scenario.sizes == Sizes(low=20, high=30)
    assert scenario.settings == {"batch_size": 16}
    assert scenario.federation().num_clusters == 2


def test_paths_in_a_file_are_relative_to_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'model = "cnn"\nnum_clients = 1\nnum_uploads = 1\n'
        '[clusters]\nkind = "domains"\nsources = ["mnist+a.npz", "b.npz"]\nshape = [3, 32, 32]\n'
    )
    expected = Domains((f"mnist+{tmp_path / 'a.npz'}", str(tmp_path / "b.npz")), (3, 32, 32))
    assert load_scenario(str(path)).clusters == expected


def test_a_python_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import replace\nfrom cdfl.scenarios import load_scenario\n"
        'problem = replace(load_scenario("digits-4"), name="mine", num_clients=3)\n'
    )
    assert load_scenario(str(path)).num_clients == 3


SHIFTS = '[clusters]\nkind = "shifts"\nsource = "digits"\n'
WHOLE = 'model = "cnn"\nnum_clients = 1\nnum_uploads = 1\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 3", "is not a TOML file"),
        (WHOLE, r"needs a table \[clusters\]"),
        (
            WHOLE + '[clusters]\nkind = "spirals"',
            r"\[clusters\] has kind 'spirals'; expected one of rotations, domains",
        ),
        (
            WHOLE + '[clusters]\nkind = "rotations"\nsorce = "digits"',
            r"has 'sorce'; expected only source, num_clusters",
        ),
        (WHOLE + '[clusters]\nkind = "rotations"', r"\[clusters\] has no source; expected source = \.\.\., a word"),
        (
            WHOLE.replace('model = "cnn"\n', "") + SHIFTS,
            "the file has no model; expected model = ..., one of cnn",
        ),
        (
            WHOLE + SHIFTS + '[drift]\nkind = "sudden"\nevery = "x"',
            r'\[drift\] has every = "x"; expected a whole number',
        ),
        (WHOLE + SHIFTS + '[drift]\nkind = "sudden"\nevery = true', r"\[drift\] has every = true; expected a whole"),
        (WHOLE + SHIFTS + '[drift]\nkind = "sudden"\nlow = "x"', r'\[drift\] has low = "x"; expected a number'),
        (WHOLE + SHIFTS + '[drift]\nkind = ["sudden"]', r"\[drift\] has kind \['sudden'\]; expected one of paper"),
        ("settings = 3\n" + WHOLE + SHIFTS, "the file has settings = 3; expected a table"),
        (WHOLE.replace('"cnn"', "3") + SHIFTS, "the file has model = 3; expected one of cnn, .*in quotes"),
        (
            WHOLE + '[clusters]\nkind = "domains"\nsources = ["a.npz"]\nshape = [32, 32]',
            r"has shape = \[32, 32\]; expected a list of three whole numbers: channels, height, width",
        ),
        (
            WHOLE + '[clusters]\nkind = "domains"\nsources = ["a.npz"]\nshape = [1, 0, 8]',
            r"\[clusters\]: shape is \(1, 0, 8\); expected channels, height and width, whole numbers of at least 1",
        ),
        (WHOLE + '[clusters]\nkind = "domains"\nsources = [1]', r"sources = \[1\]; expected a list of words in quotes"),
        ("clusters = 3\n" + WHOLE, r"\[clusters\] has kind 3; expected one of rotations"),
        ("sizes = 3\n" + WHOLE + '[clusters]\nkind = "shifts"\nsource = "digits"', r"\[sizes\] is 3; expected a table"),
        (
            WHOLE.replace("1", '"ten"') + '[clusters]\nkind = "shifts"\nsource = "digits"',
            'the file has num_clients = "ten"; expected a whole number',
        ),
        ("clients = 3\n" + WHOLE + '[clusters]\nkind = "shifts"\nsource = "digits"', "the file has 'clients'"),
        (
            WHOLE.replace("cnn", "vgg") + '[clusters]\nkind = "shifts"\nsource = "digits"',
            "there is no model 'vgg'; there are",
        ),
        (
            WHOLE.replace("clients = 1", "clients = 0") + '[clusters]\nkind = "shifts"\nsource = "digits"',
            "0 clients and 1 uploads; expected at least 1 of each",
        ),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_scenario(str(path))


def test_a_kind_alone_is_a_word(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('drift = "sudden"\n' + WHOLE + SHIFTS)
    assert load_scenario(str(path)).drift == Sudden()


def test_a_drift_must_be_able_to_count():
    with pytest.raises(ValueError, match=r"`drift` is 'sudden'; expected an object with counts\(seed, client, update"):
        replace(load_scenario("digits-4"), drift="sudden")
    with pytest.raises(ValueError, match=r"`drift` is <class .*Sudden'>; expected an object"):
        replace(load_scenario("digits-4"), drift=Sudden)


@pytest.mark.parametrize(
    "name", ["ü 2", "u\u0308", "नमस्ते", "digits-4 (smoke)", "lr=0.1", "mine, v2", "a'b", "50%", "#1", "[x]", ".x", "..."]
)
def test_a_name_may_be_any_part_of_a_path(name):
    assert replace(load_scenario("digits-4"), name=name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "../../evil x", "a/b", "a\\b", "c:x", "a\nb", "..\n", "\0", 5])
def test_a_name_that_could_lead_elsewhere_is_refused(name):
    with pytest.raises(ValueError, match=r'a problem has the name .*; set name = "\.\.\." to words without / \\ :'):
        replace(load_scenario("digits-4"), name=name)


def test_a_file_with_such_a_name_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "../evil"\n' + WHOLE + SHIFTS)
    with pytest.raises(DataError, match=r"mine\.toml: the file: a problem has the name '\.\./evil'"):
        load_scenario(str(path))


def test_an_unknown_name_and_a_missing_file():
    with pytest.raises(DataError, match="there is no scenario 'digits-5'; `cdfl scenarios` lists them"):
        load_scenario("digits-5")
    with pytest.raises(DataError, match=r"there is no file nowhere\.toml"):
        load_scenario("nowhere.toml")


def test_a_scenario_in_python_needs_little():
    scenario = Scenario(clusters=Rotations("digits", 3), model="small-cnn", num_clients=3, num_uploads=9)
    federation = scenario.federation()
    assert (federation.num_clusters, federation.notes) == (3, ())
    large = replace(scenario, sizes=Sizes()).federation()
    assert len(large.notes) == 2  # 1,297 images are too few for the paper's server sets


def test_a_toml_file_for_a_table(tmp_path):
    rows = [f"{number},{number % 7},{'north' if number < 30 else 'south'}" for number in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(["age,dose,place", *rows]))
    path = tmp_path / "mine.toml"
    path.write_text(
        'model = "mlp"\nloss = "mse_loss"\nmetrics = ["mae", "r2"]\n'
        '[clusters]\nkind = "table"\nsource = "mine.csv"\ntarget = "dose"\nby = "place"\nclasses = false\n'
    )
    scenario = load_scenario(str(path))
    assert (scenario.num_clients, scenario.num_uploads) == (20, 300)
    assert [metric.name for metric in scenario.metrics] == ["mae", "r2"]
    assert scenario.federation().names == ["place=north", "place=south"]
    path.write_text(path.read_text().replace("mse_loss", "mse"))
    with pytest.raises(DataError, match=r'the file has loss = "mse"; expected one of cross_entropy, binary'):
        load_scenario(str(path))


@pytest.mark.parametrize("name", ["breast-cancer-3", "diabetes-2", "power-2"])
def test_scenarios_without_pictures_need_no_download(name, tmp_path):
    federation = load_scenario(name).federation(data_dir=tmp_path)
    inputs, targets = federation.fetch(federation.draw(0, 0).train)
    assert len(inputs) == len(targets) > 5
    assert federation.num_clusters == int(name[-1])
