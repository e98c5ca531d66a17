# SPDX-License-Identifier: Apache-2.0
"""Backends that write and read the bytes that ``reference`` specifies."""

# Standard
from functools import lru_cache
from importlib.util import find_spec


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Return whether Triton is installed, which takes long to import."""
    return find_spec("triton") is not None
