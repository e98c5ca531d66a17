# SPDX-License-Identifier: Apache-2.0
"""The TurboQuant fork of LMCache as a patch set on one pinned release.

``release`` and ``series`` hold what is pinned and what is changed, ``plan``
compares a tree with both, ``transaction`` changes a tree or restores it, and
``tree`` puts these together. ``wheel`` and ``backend`` build the fork's wheel.
"""

# Standard
import sys

if sys.version_info < (3, 10):
    raise RuntimeError(
        f"expected Python 3.10 to 3.13, as LMCache does, found {sys.version}"
    )
