# SPDX-License-Identifier: Apache-2.0
"""The one error that the patch set raises for input it refuses."""


class PatchError(ValueError):
    """A tree, a download, a patch or a setting is not what it has to be."""
