"""The tuned settings of each algorithm: the best of its trials in `experiments/tuning.py`, for each network."""

from typing import Any

# network -> (algorithm, what it is tuned for) -> the best trial; `tests/experiments/test_following.py` checks it
TUNED: dict[str, dict[tuple[str, str], dict[str, Any]]] = {
    "small-cnn": {
        ("cdfl", "served"): {"base_rate": 0.3, "shared_step": 0.25, "weight_decay": 5e-4},
        ("fedsoft", "after"): {"base_rate": 0.3, "shared_step": 0.0},
        ("fedsoft", "routed"): {"base_rate": 0.15, "shared_step": 0.25},
        ("ifca", "after"): {"base_rate": 0.15, "shared_step": 0.0},
        ("ifca", "routed"): {"base_rate": 0.3, "shared_step": 0.25, "weight_decay": 5e-4},
        ("fedem", "after"): {"base_rate": 0.3},
        ("fedem", "routed"): {"base_rate": 0.15},
        ("fedbuff", "after"): {"base_rate": 0.15, "weight_decay": 5e-4},
        ("fedbuff", "before"): {"base_rate": 0.3},
        ("fedasync", "after"): {"base_rate": 0.2},
        ("frozen", "after"): {"shared_epochs": 30},
        ("frozen", "routed"): {"separate_epochs": 40},
    },
    "cnn": {
        ("cdfl", "served"): {"base_rate": 0.3, "shared_step": 0.25},
        ("fedsoft", "after"): {"base_rate": 0.3, "shared_step": 0.0},
        ("fedsoft", "routed"): {"base_rate": 0.3, "shared_step": 0.25, "weight_decay": 5e-4},
        ("ifca", "after"): {"base_rate": 0.3, "shared_step": 0.25},
        ("ifca", "routed"): {"base_rate": 0.15, "shared_step": 0.25},
        ("fedem", "after"): {"base_rate": 0.3},
        ("fedem", "routed"): {"base_rate": 0.15},
        ("fedbuff", "after"): {"base_rate": 0.2},
        ("fedbuff", "before"): {"base_rate": 0.3},
        ("fedasync", "after"): {"base_rate": 0.2},
        ("frozen", "after"): {"shared_epochs": 30},
        ("frozen", "routed"): {"separate_epochs": 40},
    },
    "cnn-27k": {
        ("cdfl", "served"): {"base_rate": 0.3, "shared_step": 0.25},
        ("fedsoft", "after"): {"base_rate": 0.3, "shared_step": 0.0},
        ("fedsoft", "routed"): {"base_rate": 0.3, "shared_step": 0.25},
        ("ifca", "after"): {"base_rate": 0.3, "shared_step": 0.25, "weight_decay": 5e-4},
        ("ifca", "routed"): {"base_rate": 0.15, "shared_step": 0.25},
        ("fedbuff", "after"): {"base_rate": 0.2},
        ("fedbuff", "before"): {"base_rate": 0.3},
        ("fedasync", "after"): {"base_rate": 0.3, "weight_decay": 5e-4},
        ("frozen", "after"): {"shared_epochs": 30},
        ("frozen", "routed"): {"separate_epochs": 40},
    },
    "cnn-4k": {
        ("cdfl", "served"): {"base_rate": 0.5, "shared_step": 0.25},
        ("fedsoft", "after"): {"base_rate": 0.3, "shared_step": 0.25, "weight_decay": 5e-4},
        ("fedsoft", "routed"): {"base_rate": 0.3, "shared_step": 0.0},
        ("ifca", "after"): {"base_rate": 0.3, "shared_step": 0.25},
        ("ifca", "routed"): {"base_rate": 0.15, "shared_step": 0.25},
        ("fedbuff", "after"): {"base_rate": 0.2},
        ("fedbuff", "before"): {"base_rate": 0.3},
        ("fedasync", "after"): {"base_rate": 0.5},
        ("frozen", "after"): {"shared_epochs": 30},
        ("frozen", "routed"): {"separate_epochs": 40},
    },
    "cnn-2m": {
        ("fedbuff", "after"): {"base_rate": 0.2},
        ("fedbuff", "before"): {"base_rate": 0.3},
    },
    "cnn-108k": {
        ("fedbuff", "after"): {"base_rate": 0.15, "weight_decay": 5e-4},
        ("fedbuff", "before"): {"base_rate": 0.3},
    },
    "cnn-15k": {
        ("fedbuff", "after"): {"base_rate": 0.2},
        ("fedbuff", "before"): {"base_rate": 0.3},
    },
    "gru": {
        ("fedsoft", "after"): {"base_rate": 0.5, "shared_step": 0.25},
        ("fedbuff", "after"): {"base_rate": 0.15},
        ("fedbuff", "before"): {"base_rate": 0.3},
    },
}
