"""What somebody asked for by name or id, or one line that says that it is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from backstay.cli import exit_codes
from backstay.cli.output import warn
from backstay.errors import JobNotFound, RunNotFound, WorkflowNotFound

T = TypeVar("T")


def found(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (JobNotFound, RunNotFound, WorkflowNotFound) as error:
        warn(str(error))
        raise typer.Exit(exit_codes.FAILED) from error
