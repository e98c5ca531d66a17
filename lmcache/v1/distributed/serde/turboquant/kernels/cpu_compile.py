# SPDX-License-Identifier: Apache-2.0
"""When and how the CPU kernels are compiled."""

# Standard
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
import pickle
import threading

# Third Party
from numba import njit

# First Party
from lmcache.logging import init_logger

logger = init_logger(__name__)

ANNOUNCE_AFTER_SECONDS = 1.0

# Kernels release the GIL, and a division by zero is IEEE's, not an exception.
_jit: Callable = partial(njit, nogil=True, error_model="numpy")

part: Callable = _jit()
"""Decorator of a function that kernels call; it is compiled with each of them."""


def _source_revision() -> int:
    """Digest the sources that a kernel is compiled from."""
    digest = blake2b(digest_size=7)
    for path in sorted(Path(__file__).parent.glob("cpu*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")


SOURCE_REVISION = _source_revision()
"""Default of the last parameter of every kernel.

numba keeps compiled code while the kernel's own file stays the same. A default
is part of the signature that the code is kept under, so that code made from an
older version of another file is not found either.
"""


class Kernel:
    """Decorator of a function that numba compiles when it is first called.

    The compiled code is cached on disk, as numba does, or held in memory only
    where no folder can be written. Safe to call from several threads.

    Args:
        function: What to compile. Callers leave out its last parameter,
            ``revision``, which defaults to ``SOURCE_REVISION``.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._compiled: Callable[..., None] | None = None

    def __call__(self, *args: object) -> None:
        """Run the kernel; the first call compiles it or loads it from disk."""
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self._compile(args)
                    return
        self._compiled(*args)

    def _compile(self, args: tuple[object, ...]) -> Callable[..., None]:
        """Compile and run; say what takes so long if it does."""
        announcement = threading.Timer(ANNOUNCE_AFTER_SECONDS, self._announce)
        announcement.daemon = True
        announcement.start()
        try:
            return self._compile_with(args, cache=True)
        except (OSError, EOFError, RuntimeError, pickle.PickleError) as error:
            logger.warning(
                "The TurboQuant CPU kernel %s is compiled anew in every process, as "
                "numba's cache is unusable; NUMBA_CACHE_DIR can name a folder: %s",
                self._function.__name__,
                error,
            )
            return self._compile_with(args, cache=False)
        finally:
            announcement.cancel()

    def _compile_with(
        self, args: tuple[object, ...], *, cache: bool
    ) -> Callable[..., None]:
        """Compile and run, with or without numba's cache on disk."""
        compiled = _jit(cache=cache)(self._function)
        compiled(*args)
        return compiled

    def _announce(self) -> None:
        """Tell the operator what the first call waits for."""
        logger.info(
            "Compiling the TurboQuant CPU kernel %s, which takes some seconds",
            self._function.__name__,
        )
