"""The log of long-running commands on standard error."""

from __future__ import annotations

import logging
import sys

from backstay.runtime.serialization import printable

FORMAT = "%(asctime)s %(levelname)s %(message)s"


class SafeFormatter(logging.Formatter):
    """Escapes control characters, since messages may contain text of clients: names, paths, errors of commands. Such
    text can neither control the terminal nor forge a log line: the further lines of a record are indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(printable(line.expandtabs()) for line in super().format(record).split("\n"))


def configure_logging(level: str) -> None:
    """Log to standard error: lines with time and level. Access log lines are JSON and have neither."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    access = logging.getLogger("backstay.access")
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(SafeFormatter("%(message)s"))
    access.addHandler(plain)
    access.propagate = False
