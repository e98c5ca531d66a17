# SPDX-License-Identifier: Apache-2.0
"""What LMCache's loggers say of failures in its background threads."""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
import logging


class LogRecorder(logging.Handler):
    """Keeps what loggers of LMCache say of failures, exceptions included."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception of a record, else its message."""
        error = record.exc_info[1] if record.exc_info else None
        self.lines.append(record.getMessage() if error is None else str(error))

    def about(self, text: str) -> list[str]:
        """The lines that hold ``text``."""
        return [line for line in self.lines if text in line]


@contextmanager
def recorded_log() -> Iterator[LogRecorder]:
    """Record what LMCache's loggers say meanwhile."""
    recorder = LogRecorder()
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("lmcache.") and isinstance(logger, logging.Logger)
    ]
    for logger in loggers:
        logger.addHandler(recorder)
    try:
        yield recorder
    finally:
        for logger in loggers:
            logger.removeHandler(recorder)
