# SPDX-License-Identifier: Apache-2.0
"""Download the pinned distributions through pip and check their hashes.

pip alone decides where packages come from, so that its configuration (mirrors,
proxies, local files) holds. Only files whose hash is right enter the cache.
"""

# Standard
from collections.abc import Mapping, Sequence
from pathlib import Path
import os
import platform
import subprocess
import sys
import tarfile
import tempfile

# First Party
from patchset.errors import PatchError
from patchset.files import sha256
from patchset.release import REPOSITORY, Release

CACHE = REPOSITORY / "build" / "pinned"

# pip asks a source distribution for its metadata even when it only downloads.
# These settings of LMCache's setup.py keep that step from looking for CUDA; what
# else the step imports has to be installed already.
SDIST_SETTINGS = {"NO_NATIVE_EXT": "1", "NO_GPU_EXT": "1", "NO_CUDA_EXT": "1"}
SDIST_REQUIREMENTS = "torch, setuptools, setuptools_scm, grpcio-tools, ninja, wheel"


def wheel_name(release: Release) -> str:
    """Return the name of the pinned wheel for the running interpreter.

    Args:
        release: The pins.

    Returns:
        A key of ``release.wheels``.

    Raises:
        PatchError: The release has no wheel for this interpreter and machine.
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"-{python}-{python}{sys.abiflags}-manylinux"
    ending = f"_{platform.machine()}.whl"
    for name in release.wheels:
        if platform.system() == "Linux" and tag in name and name.endswith(ending):
            return name
    raise PatchError(
        f"{release.project} {release.version} has no wheel for {python}"
        f"{sys.abiflags} on {platform.system()} {platform.machine()}; "
        f"expected one of: {', '.join(sorted(release.wheels))}"
    )


def fetch_wheel(release: Release, cache: Path = CACHE) -> Path:
    """Return the pinned wheel for the running interpreter, downloaded if needed.

    Args:
        release: The pins.
        cache: Folder that keeps checked downloads.

    Returns:
        Path of the wheel in ``cache``.

    Raises:
        PatchError: There is no such wheel, pip fails, or the hash is wrong.
    """
    name = wheel_name(release)
    options = ["--only-binary", release.project]
    return _fetch(release, name, release.wheels[name], cache, options, {})


def fetch_sdist(release: Release, cache: Path = CACHE) -> Path:
    """Return the pinned source distribution, downloaded if needed.

    Args:
        release: The pins.
        cache: Folder that keeps checked downloads.

    Returns:
        Path of the archive in ``cache``.

    Raises:
        PatchError: pip fails, for instance because a package that the metadata
            step imports is not installed, or the hash is wrong.
    """
    ((name, digest),) = release.sdist.items()
    options = ["--no-build-isolation", "--no-binary", release.project]
    return _fetch(release, name, digest, cache, options, SDIST_SETTINGS)


def unpack_sdist(archive: Path, directory: Path) -> Path:
    """Unpack a source distribution.

    Args:
        archive: The ``.tar.gz`` file.
        directory: Folder to unpack into, made if needed.

    Returns:
        The tree: the one folder that the archive holds.
    """
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def _fetch(
    release: Release,
    name: str,
    digest: str,
    cache: Path,
    options: Sequence[str],
    settings: Mapping[str, str],
) -> Path:
    """Return ``cache / name``, downloaded with ``options`` where it is missing."""
    target = cache / name
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as download:
            _pip_download(release, Path(download), options, settings)
            fetched = Path(download) / name
            if not fetched.exists():
                found = ", ".join(os.listdir(download))
                raise PatchError(f"pip downloaded {found}; expected {name}")
            _check_digest(fetched, digest)
            fetched.replace(target)
    _check_digest(target, digest)
    return target


def _pip_download(
    release: Release,
    directory: Path,
    options: Sequence[str],
    settings: Mapping[str, str],
) -> None:
    """Let pip put one distribution of the release into ``directory``."""
    requirement = f"{release.project}=={release.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += [*options, "--dest", str(directory), requirement]
    done = subprocess.run(
        command, env={**os.environ, **settings}, text=True, capture_output=True
    )
    if done.returncode:
        needs = f" (needs {SDIST_REQUIREMENTS} installed)" if settings else ""
        raise PatchError(
            f"pip could not download {requirement}{needs}:\n{done.stderr.strip()}"
        )


def _check_digest(path: Path, expected: str) -> None:
    """Raise ``PatchError`` unless the file has the pinned sha256."""
    found = sha256(path.read_bytes())
    if found != expected:
        raise PatchError(f"{path}: expected sha256 {expected}, found {found}")
