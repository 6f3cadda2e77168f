"""The trackers with MLflow and W&B installed: that takes a minute and a package index, hence on request."""

import os
import tempfile
from pathlib import Path

import pytest

from ..environments import make_environment, run

PACKAGES = ("mlflow-skinny==3.17.2", "alembic==1.20.1", "wandb==0.31.0")
ASKED = "CDFL_TEST_TRACKERS"


@pytest.mark.skipif(not os.environ.get(ASKED), reason="installs MLflow and W&B; `make test-trackers` runs it")
def test_with_the_packages_installed():
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder), *PACKAGES)
        command = [python, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-W", "ignore"]
        ended = run(*command, "tests/track/test_trackers.py")
    assert ended.returncode == 0, ended.stdout
    assert "skipped" not in ended.stdout, ended.stdout
    assert ended.stdout.count("PASSED tests/track/test_trackers.py") >= 8, ended.stdout
