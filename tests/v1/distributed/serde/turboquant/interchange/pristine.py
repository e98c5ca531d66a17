# SPDX-License-Identifier: Apache-2.0
"""Where the pristine LMCache release is."""

# Standard
from pathlib import Path
import os
import tempfile
import zipfile

# First Party
from patchset.fetch import fetch_wheel
from patchset.release import REPOSITORY, load_release

FOLDER_VARIABLE = "TURBOQUANT_PRISTINE_LMCACHE"
"""Environment variable: a folder that holds ``lmcache/`` of the pinned wheel."""

UNPACKED_WHEELS = REPOSITORY / "build" / "pristine"


def pristine_folder() -> Path:
    """Return a folder that holds ``lmcache/`` of the pinned wheel.

    Returns:
        The folder that the environment names, else the pinned wheel of the
        running interpreter, downloaded and unpacked if it is not yet.

    Raises:
        FileNotFoundError: If the folder that the environment names holds no
            LMCache.
        PatchError: If the wheel cannot be had, or is not the pinned one.
    """
    configured = os.environ.get(FOLDER_VARIABLE)
    if configured is None:
        return _unpacked(fetch_wheel(load_release()))
    folder = Path(configured).resolve()
    if not (folder / "lmcache" / "__init__.py").is_file():
        raise FileNotFoundError(
            f"{FOLDER_VARIABLE} must name a folder that holds lmcache/, got {folder}"
        )
    return folder


def _unpacked(wheel: Path) -> Path:
    """Unpack a wheel; a folder of its name is there only when it is complete."""
    folder = UNPACKED_WHEELS / wheel.stem
    if not folder.exists():
        UNPACKED_WHEELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNPACKED_WHEELS) as scratch:
            partial = Path(scratch) / wheel.stem
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
            partial.rename(folder)
    return folder
