# SPDX-License-Identifier: Apache-2.0
"""The build backend (PEP 517) that ``pyproject.toml`` names.

It has no hook for metadata: pip reads that from the wheel. Nor has it one for
editable installs: ``patches/apply.py --link`` is the way to work on an installed
LMCache.
"""

# Standard
from pathlib import Path
import os

# First Party
from patchset.plan import PatchSet
from patchset.wheel import build_fork_wheel


class UnsupportedOperation(Exception):
    """What PEP 517 asks a backend to raise when it cannot do what a hook says."""


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel.

    Args:
        wheel_directory: Folder that receives it.
        config_settings: Ignored; settings come from the environment.
        metadata_directory: Ignored; the backend prepares no metadata.

    Returns:
        File name of the wheel.

    Raises:
        PatchError: As ``build_fork_wheel``.
    """
    return build_fork_wheel(Path(wheel_directory), PatchSet(), os.environ)


def build_sdist(
    sdist_directory: str, config_settings: dict[str, object] | None = None
) -> str:
    """Refuse: the repository is the source, a wheel is what it builds.

    Args:
        sdist_directory: Ignored.
        config_settings: Ignored.

    Raises:
        UnsupportedOperation: Always.
    """
    raise UnsupportedOperation(
        "the fork has no source distribution; build a wheel from a checkout: "
        "pip wheel --no-deps ."
    )
