"""The command line. Importable without its extra, so that it can say what is missing."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["main"]

#: What `backstay[cli]` brings.
EXTRA = {"typer", "rich"}


def main() -> None:
    """The `backstay` program."""
    try:
        import_module("rich")  # used late, missed early
        from backstay.cli.root import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        print("backstay: the command line needs its extra: pip install 'backstay[cli]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="backstay")
