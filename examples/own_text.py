"""A folder of texts: the next character, one cluster for each folder in it. Here: Python's manual and its source."""

import inspect
import json
import pydoc_data.topics
import textwrap
from pathlib import Path

import cdfl

folder = Path("texts")
for name, text in (
    ("manual", "\n\n".join(list(pydoc_data.topics.topics.values())[:40])),
    ("source", "\n\n".join(inspect.getsource(module) for module in (json.decoder, json.encoder, textwrap))),
):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "text.txt").write_text(text, encoding="utf-8")

problem = cdfl.Problem(
    model="gru",  # or "transformer", or a network of yours that gives scores (n, tokens, length)
    clusters=cdfl.Texts(folder, length=32),
    metrics=["bits", "accuracy"],  # bits: per character
    sizes=cdfl.Sizes(low=20, high=40, test=20, pretraining=100, proxy=30),
    settings={"batch_size": 8, "learning_rate": 0.005, "local_epochs": 1, "shared_epochs": 3},
)
print(cdfl.run(problem, num_clients=6, num_uploads=18))
