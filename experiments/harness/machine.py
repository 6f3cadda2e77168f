"""What a number was measured on: stored beside it."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch


def machine() -> dict[str, object]:
    """Return processor, cores, GPU, versions and day."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """Return the commit of a folder, by default this code's, with "-dirty" if files differ; None if there is none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
