"""The command line. This package imports without the `cli` extra, so that `main` can say which extra to install."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["main"]

#: Packages that `backstay[cli]` installs.
EXTRA = {"typer", "rich"}


def main() -> None:
    """Run the `backstay` program; without the `cli` extra, print how to install it and exit with code 2."""
    try:
        import_module("rich")  # commands import it late; a missing package must be reported at the start
        from backstay.cli.root import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        print("backstay: the command line needs its extra: pip install 'backstay[cli]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="backstay")
