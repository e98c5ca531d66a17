# SPDX-License-Identifier: Apache-2.0
"""Where figures come from: machine, versions, commit."""

# Standard
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
import os
import platform
import subprocess

# Third Party
from cpuinfo import get_cpu_info

REPOSITORY = Path(__file__).parents[2]


def provenance(*packages: str) -> dict[str, str]:
    """Describe this machine and what runs on it.

    Args:
        packages: Distributions whose versions matter.

    Returns:
        Columns for a CSV file; ``load`` is the number of processes that wanted a
        core over the last minute.
    """
    cpu = get_cpu_info()
    # Virtual machines hide the model's number behind a short brand name.
    model = "family {family} model {model} stepping {stepping}".format_map(cpu)
    columns = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": f"{cpu['brand_raw']} ({model})",
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    return columns | {package: _version(package) for package in packages}


def _version(package: str) -> str:
    """Return the installed version of a distribution."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Name the checkout's commit, and whether files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"
