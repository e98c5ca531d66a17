# SPDX-License-Identifier: Apache-2.0
"""Why LMCache's background threads failed, as they told it to their log."""

# Standard
import logging


class FailureLog(logging.Handler):
    """Remembers what LMCache's loggers say was wrong; its text is the cause.

    LMCache reports a failed store or load only as a count; the reason goes to the log
    of the thread that met it.
    """

    def __init__(self, prefix: str) -> None:
        """Listen to the loggers that exist now.

        Args:
            prefix: Listen to loggers whose name starts with this.
        """
        super().__init__(level=logging.WARNING)
        self._messages: list[str] = []
        self._exceptions: list[str] = []
        self._listened_to = [
            logger
            for name, logger in logging.root.manager.loggerDict.items()
            if name.startswith(prefix) and isinstance(logger, logging.Logger)
        ]
        self._levels = [logger.level for logger in self._listened_to]
        for logger in self._listened_to:
            logger.addHandler(self)
            # LMCache's own handlers keep their level, so what is shown stays the same.
            logger.setLevel(min(logger.level, logging.WARNING))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's text, and its exception if there is one."""
        self._messages.append(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            self._exceptions.append(str(record.exc_info[1]))

    def close(self) -> None:
        """Stop listening."""
        for logger, level in zip(self._listened_to, self._levels, strict=True):
            logger.removeHandler(self)
            logger.setLevel(level)
        super().close()

    def __str__(self) -> str:
        """The first exception, or the first message, or that there was none."""
        for text in (*self._exceptions, *self._messages):
            return text
        return "LMCache gave no reason"
