"""Named settings: the paper's as printed, a reading of them that learns, and our defaults.

`PAPER` holds the printed values; comments in `_paper` say where each is printed.

`reading` interprets the printed values. The interpretation was found on FashionMNIST with 4 clusters
(`experiments/preset_search.py`) and is used for all rows. The preset `paper-reading` also sets a time model
(`cdfl.sim.presets`).

`DEFAULT` is `Settings()`. A scenario may override some values (`cdfl.scenarios`): those with ResNet-18 use the paper's
SGD; those of MiniImageNet also use steps towards uploads at a rate of .3; these and digit recognition use relative
measures. The defaults were chosen on FashionMNIST with 4 clusters and uniform uploads, and on 8x8 digits:

- cluster_step="along", base_rate=.15, rate_floor=.05: the search is in `benchmarks/results/default.json`, on seeds that
  no table uses.
- staleness_grace=20, staleness_slope=1/20, continuous: an upload's rate times its age is at most .15 x 20. If that
  product is large, steps along the change overshoot, most of all if every client uploads once a session. With such
  sessions, staleness_grace 80 diverged on both scenarios (FashionMNIST with 100 clients, digits-4 with 40); 40 diverged
  on digits-4. These runs were not kept. 30 is better by .001 to .003 on FashionMNIST, but closer to divergence.
- main_share=.65 is the mean of the paper's drift. A fixed factor does not suit all numbers of clusters: 12, used in
  the first searches, works with four (where .65 gives 15.5), is too weak for six, and gives one of two clusters
  everything (digits in 2, 3 and 6 rotations, one or two runs each).
- weight_decay=5e-4: the printed .005 was worse in one run of an earlier default, whose figures were not kept.
- max_staleness=None (Deviation): with the printed a=10, b=5, tau_0=M, rates vanish when many clients are active, since
  the staleness of an upload is then about M.
- shared_epochs=10, separate_epochs=2: all clusters start from one model, so that their averages are useful.
- proximal_strength=.01 and Adam at 1e-3: the printed .1 and 1e-2 keep clients from fitting their data (this and the two
  points above come from single runs of an earlier prototype).
- bars "min" never reverse the ranking of clusters. But small differences then count as much as large ones; on
  MiniImageNet (6) with plain measures, two clusters got hardly any uploads.
- batch_size=128 as printed; local_epochs=5, which the paper does not print.
"""

from collections.abc import Mapping
from typing import Any, Literal

from cdfl.core.settings import Bar, Settings

MIN: Literal["min"] = "min"

# `paper-reading`: the printed bars of 8, 40 and 70 are above every mean loss, which reverses the ranking of clusters.
# Read as bars of a loss summed over 16 batches of 64 proxy samples, they are below the losses of FashionMNIST (4), on
# which the reading was found. The losses of FashionMNIST (2) fell to them in a short run that was not kept. Dividing
# the bars by 16 has the same effect.
PROXY_BATCHES = 16
# The only printed value that is changed: the printed .01 lowers every figure of FashionMNIST (4) by some points.
READING_OF_ADAM: Mapping[str, Any] = {"learning_rate": 1e-3}


def _paper(
    c1: float,
    c2: float,
    sharpness: tuple[float, ...],
    bars: tuple[Bar, Bar, Bar],
    max_staleness: int,
    network: Literal["cnn", "resnet18"],
) -> Settings:
    cnn = network == "cnn"
    return Settings(
        # Table "Distribution estimation and server updating parameters", appendix A
        loss_weight=c1,
        gap_weight=c2,
        sharpness=sharpness,
        loss_bar=bars[0],
        gap_bar=bars[1],
        distance_bar=bars[2],
        rate_floor="mean",  # printed as "ave" in all 13 rows
        # section 5.1, Setup: beta_0 = .025, a = 10, b = 5, rho = .1, tau_0 = number of clients
        base_rate=0.025,
        cluster_step="towards",
        staleness_slope=10,
        staleness_grace=5,
        staleness_hinge="paper",
        max_staleness=max_staleness,
        proximal_strength=0.1,
        # appendix A, below the model structures: batch size 128 for all; Adam for the CNN, SGD for ResNet-18
        batch_size=128,
        optimizer="adam" if cnn else "sgd",
        learning_rate=0.01 if cnn else 0.1,
        weight_decay=0.005 if cnn else 5e-4,
        momentum=0.0 if cnn else 0.9,
        # not printed; ours
        local_epochs=5,
        shared_epochs=0,
        separate_epochs=10,
    )


_ALL_MIN: tuple[Bar, Bar, Bar] = (MIN, MIN, MIN)

# The 13 rows of the parameter table; 20 clients for each cluster, 100 for digit recognition (section 5.1).
PAPER: dict[str, Settings] = {
    "fashion-mnist-2": _paper(0.5, 0.4, (3,), (8, 0, 0), 40, "cnn"),
    "fashion-mnist-3": _paper(0.5, 0.25, (3,), (8, 0, 0), 60, "cnn"),
    "fashion-mnist-4": _paper(0.5, 0.25, (7,), (8, 0, 0), 80, "cnn"),
    "fashion-mnist-6": _paper(0.7, 0.2, (15,), (8, 0, 0), 120, "cnn"),
    "cifar-100-2": _paper(0.5, 0.2, (1,), (40, 0, 0), 40, "resnet18"),
    "cifar-100-3": _paper(0.5, 0.2, (10,), _ALL_MIN, 60, "resnet18"),
    "cifar-100-4": _paper(0.5, 0.2, (10,), _ALL_MIN, 80, "resnet18"),
    "cifar-100-6": _paper(0.5, 0.2, (10,), _ALL_MIN, 120, "resnet18"),
    "mini-imagenet-2": _paper(0.5, 0.2, (1,), (70, 0, 0), 40, "resnet18"),
    "mini-imagenet-3": _paper(0.5, 0.4, (7,), _ALL_MIN, 60, "resnet18"),
    "mini-imagenet-4": _paper(0.6, 0.3, (15,), _ALL_MIN, 80, "resnet18"),
    "mini-imagenet-6": _paper(0.6, 0.3, (10, 10), _ALL_MIN, 120, "resnet18"),
    "digit-recognition": _paper(0.9, 0.0, (5,), _ALL_MIN, 100, "cnn"),
}


DEFAULT = Settings()


def paper(row: str) -> Settings:
    """Return the values that the paper prints for one row of its tables.

    >>> paper("mini-imagenet-6").estimate.sharpness
    (10, 10)
    >>> paper("mnist")
    Traceback (most recent call last):
    ValueError: the paper has no row 'mnist'; it has fashion-mnist-2, ...
    """
    if row not in PAPER:
        raise ValueError(f"the paper has no row {row!r}; it has {', '.join(PAPER)}")
    return PAPER[row]


def reading(row: str) -> Settings:
    """Return the reading of a row: bars on the scale of a mean loss, and a learning rate at which Adam trains.

    >>> paper("fashion-mnist-4").estimate.loss_bar, reading("fashion-mnist-4").estimate.loss_bar
    (8, 0.5)
    """
    printed = paper(row)
    bar = printed.estimate.loss_bar if printed.estimate.loss_bar == MIN else printed.estimate.loss_bar / PROXY_BATCHES
    return printed.replace(loss_bar=bar, **(READING_OF_ADAM if printed.training.optimizer == "adam" else {}))
