"""Tables: columns become features, targets and clusters; mistakes are one sentence."""

import numpy as np
import pytest
import torch

from cdfl.data import DataError, Table
from cdfl.data.tables import Quantiles, read_csv
from cdfl.json_values import jsonable

ROWS = 40
COLUMNS = {
    "age": np.arange(ROWS),
    "weight": np.linspace(50, 90, ROWS),
    "smokes": np.array(["yes", "no"] * (ROWS // 2)),
    "place": np.array(["north"] * 16 + ["south"] * 24),
    "ill": np.arange(ROWS) % 3,
}


def table(source=None, **changes):
    return Table(**{"source": COLUMNS if source is None else source, "target": "ill", "by": "place", **changes})


def everything(cluster):
    data = cluster.dataset
    return torch.cat([data.train_inputs, data.test_inputs]), torch.cat([data.train_targets, data.test_targets])


def never(source):
    raise AssertionError(source)


def test_clusters_by_a_column():
    recipe = table()
    north, south = recipe.build(never)
    assert (recipe.num_clusters, north.name, south.name) == (2, "place=north", "place=south")
    inputs, targets = everything(south)
    assert inputs.shape == (24, 4)  # age, weight, and one column for each word of smokes
    assert (targets.dtype, south.dataset.num_classes) == (torch.int64, 3)
    assert len(south.dataset.test_inputs) == 6  # a quarter
    joined = torch.cat([everything(north)[0], inputs])
    assert joined[:, :2].mean(0).abs().max() < 1e-6
    assert (joined[:, :2].std(0, unbiased=False) - 1).abs().max() < 1e-6
    assert joined[:, 2:].sum(1).unique().tolist() == [1.0]


def test_clusters_by_a_function():
    old, young = table(by=lambda columns: np.where(columns["age"] >= 30, "a old", "young")).build(never)
    assert (old.name, young.name) == ("a old", "young")
    assert len(everything(old)[0]) == 10
    assert old.dataset.input_shape == (6,)  # place is a feature now
    assert table(by=Quantiles("weight", 4)).num_clusters == 4


def test_one_feature_needs_no_list():
    inputs, _ = everything(table(features="age").build(never)[0])
    assert inputs.shape[1:] == (1,)


def test_a_number_to_predict():
    one, other = table(target="weight", features=("age",)).build(never)
    targets = torch.cat([everything(one)[1], everything(other)[1]])
    assert targets.shape == (ROWS, 1)
    assert abs(float(targets.mean())) < 1e-6
    assert one.dataset.num_classes is None
    assert one.dataset.notes == ("weight is in deviations of 11.84 from its mean 70",)
    plain, _ = table(target="weight", features=("age",), scale=False).build(never)
    assert float(everything(plain)[1].min()) == 50


def test_whole_numbers_are_classes_unless_they_are_many_or_it_is_said():
    assert table(target="age").build(never)[0].dataset.num_classes == 40
    assert table(target="age", classes=False).build(never)[0].dataset.num_classes is None
    many = COLUMNS | {"age": np.arange(ROWS) * 1000, "extra": np.arange(ROWS)}
    long = {name: np.tile(values, 2) for name, values in many.items()} | {"salary": np.arange(80) * 1000}
    assert table(long, target="salary").build(never)[0].dataset.num_classes is None


def test_words_are_classes():
    assert table(target="smokes").build(never)[0].dataset.num_classes == 2


def test_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    for one, other in zip(table(frame).build(never), table().build(never), strict=True):
        assert torch.equal(everything(one)[0], everything(other)[0])
        assert torch.equal(everything(one)[1], everything(other)[1])
    frame.loc[17, "weight"] = None
    with pytest.raises(
        DataError, match="column 'weight', row 17, counted from 0: the value is missing, as in 1 of 40 rows; drop"
    ):
        table(frame).build(never)
    frame = pandas.DataFrame(COLUMNS)
    frame.loc[3, "smokes"] = None
    with pytest.raises(DataError, match="column 'smokes', row 3, counted from 0: the value is missing"):
        table(frame).build(never)


def write(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_a_csv_file(tmp_path):
    path = write(tmp_path / "mine.csv", COLUMNS)
    columns = read_csv(path)
    assert columns["age"].dtype == np.int64
    assert columns["weight"].dtype == np.float64
    assert columns["smokes"].tolist()[:2] == ["yes", "no"]
    for one, other in zip(table(str(path)).build(lambda place: read_csv(path)), table().build(never), strict=True):
        assert torch.allclose(everything(one)[0], everything(other)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 lines; expected one with the names of the columns"),
        ("a,b\n1,2\n3\n", r"mine.csv, line 3: 1 values for 2 columns; expected as many"),
        (b"a,b\n1,\xff\n", r"mine.csv is not a text file in UTF-8 \(invalid start byte at byte 6\); save it as"),
        ("a;b\n1;2\n", "separates its columns by ';'; expected commas: save it so, or read it with pandas.read_csv"),
        ("a\tb\n1\t2\n", r"separates its columns by '\\t'; expected commas"),
        ("a, b,a \n1,2,3\n", "has 2 columns named 'a'; give each a name of its own"),
    ],
)
def test_csv_files_that_are_refused(tmp_path, text, words):
    path = tmp_path / "mine.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words):
        read_csv(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "il"}, r"the table has no column 'il'; there are age, .*; did you mean ill\?"),
        ({"by": "plaice"}, r"no column 'plaice'; .* did you mean place\?"),
        ({"features": ("agee",)}, r"no column 'agee'; .* did you mean age\?"),
        (
            {"by": lambda columns: [1, 2]},
            r"`by` gave values of shape \[2\] for 40 rows; expected the cluster of each row",
        ),
        ({"by": lambda columns: columns["age"] // 20 * (columns["age"] > 37)}, "has 2 samples; expected at least 4"),
        ({"source": 3}, "a table is of type int; expected a DataFrame, a dict of columns, or the path of a .csv"),
        ({"source": {"ill": [1, 2], "place": [1]}}, r"have different lengths: \[1, 2\]; expected one"),
        ({"source": COLUMNS | {"x": np.zeros((ROWS, 2))}}, r"column 'x' has shape \[40, 2\]; expected one value a row"),
        (
            {"source": COLUMNS | {"id": [f"row {n}" for n in range(ROWS)]}},
            "column 'id' has 40 different words, such as 'row 0'; expected numbers, or at most 20",
        ),
        (
            {"source": COLUMNS | {"age": [None, *range(39)]}},
            "column 'age', row 0, counted from 0: the value is missing",
        ),
        ({"features": ()}, "features is empty; name the columns to predict from, or omit it"),
        ({"features": ("age", "ill")}, "features has the target 'ill', which clients do not know"),
        ({"by": lambda columns: columns["agee"] > 40}, r"the table has no column 'agee'; .* did you mean age\?"),
        ({"by": lambda columns: columns.age > 40}, "`by` failed with AttributeError: .*; expected a function of the c"),
        (
            {"by": lambda columns: np.where(columns["place"] == "south", np.nan, 1)},
            "`by` gives no cluster for row 16, counted from 0, as for 24 of 40 rows",
        ),
        ({"by": lambda columns: 1}, r"`by` gave values of shape \[\] for 40 rows; expected the cluster of each row"),
    ],
)
def test_tables_that_are_refused(changes, words):
    with pytest.raises(DataError, match=words):
        table(**changes).build(never)


def test_words_among_numbers(tmp_path):
    """Missing values have many names; other words are a mistake if they are few, and categories if they are many."""
    lines = ["a,b,c", *(f"{number % 7},{number % 2},{number % 3}" for number in range(40))]

    def read(value):
        (tmp_path / "t.csv").write_text("\n".join([*lines, *[f"{value},1,1"]]), encoding="utf-8")
        return read_csv(tmp_path / "t.csv")["a"]

    for name in ("NA", "nan", "null", "?", ""):
        assert np.isnan(read(name)[-1])
    with pytest.raises(
        DataError, match=r"t.csv, line 42: '3O' is no number, but 40 of 41 values in column 'a' are; cor"
    ):
        read("3O")
    lines[1:] = [line.replace("6,", "six,") for line in lines[1:]]
    assert set(read("5")) == {"0", "1", "2", "3", "4", "5", "six"}


def test_a_column_with_too_many_values_is_no_cluster():
    many = {name: np.tile(values, 2) for name, values in COLUMNS.items()} | {"age": np.arange(80)}
    with pytest.raises(DataError, match=r"column 'age' has 80 different values; expected at most 50 clusters"):
        table(many, by="age").build(never)


def test_what_is_stored_notices_other_data():
    stored = jsonable(table())
    assert (stored["kind"], stored["target"], stored["by"]) == ("Table", "ill", "place")
    assert jsonable(table()) == stored
    assert jsonable(table(COLUMNS | {"age": np.arange(ROWS) + 1})) != stored
    assert jsonable(table(by=Quantiles("age", 2)))["by"] == {"kind": "Quantiles", "column": "age", "count": 2}
