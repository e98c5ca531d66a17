# SPDX-License-Identifier: Apache-2.0
"""The pinned LMCache release: versions, hashes and what the fork replaces."""

# Standard
from dataclasses import dataclass
from pathlib import Path
import json

# First Party
from patchset.files import Snapshot

PATCHES_DIRECTORY = Path(__file__).resolve().parents[1]
REPOSITORY = PATCHES_DIRECTORY.parent


@dataclass(frozen=True, kw_only=True)
class Release:
    """One LMCache release and the fork made from it.

    Attributes:
        project: Name of the distribution.
        version: Version of the release that is patched.
        fork_version: Version of the wheel that the fork builds.
        sdist: File name and sha256 of the source distribution, one entry.
        wheels: File name and sha256 of every wheel.
        overlay: Path in a tree, and in this repository, of everything that
            the fork lays over the release, with the release's own content
            there as a snapshot: empty where the release has nothing.
        local: Paths below the overlay that stay in this repository.
    """

    project: str
    version: str
    fork_version: str
    sdist: dict[str, str]
    wheels: dict[str, str]
    overlay: dict[str, Snapshot]
    local: list[str]


def load_release(path: Path = PATCHES_DIRECTORY / "release.json") -> Release:
    """Read the pins.

    Args:
        path: The JSON file; its keys are the attributes of ``Release``.

    Returns:
        The release.

    Raises:
        TypeError: A key is missing or unknown.
    """
    return Release(**json.loads(path.read_text("utf-8")))
