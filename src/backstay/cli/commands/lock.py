"""`backstay lock NAME -- COMMAND`: its options."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from typing import Annotated

import typer

from backstay import Backstay
from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.durations import FOREVER, duration, duration_or_forever
from backstay.cli.locked_command.hold import Gate, Outcome, Wish, hold, unusable
from backstay.cli.output import warn
from backstay.runtime.validation import LONGEST_DURATION


def lock(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.", show_default=False)],
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="What to run under it, with its arguments.", show_default=False),
    ],
    *,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl",
            parser=duration,
            metavar="DURATION",
            help="How long the lock outlives us when we die. It is renewed while the command runs.",
            show_default="30s",
        ),
    ] = 30,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=duration_or_forever,
            metavar="DURATION|forever",
            help="How long to queue for it.",
            show_default="forever",
        ),
    ] = FOREVER,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not queue: take it now or give up.")] = False,
    semaphore: Annotated[
        int | None,
        typer.Option("--semaphore", metavar="N", min=1, help="Let up to N run at a time; all callers must agree on N."),
    ] = None,
    read: Annotated[bool, typer.Option("--read", "--shared", help="The shared side of a read-write lock.")] = False,
    write: Annotated[
        bool, typer.Option("--write", "--exclusive", help="The exclusive side of a read-write lock.")
    ] = False,
    max_hold: Annotated[
        float,
        typer.Option(
            "--max-hold",
            parser=duration_or_forever,
            metavar="DURATION|forever",
            help="Stop renewing after this; a command that still runs when the lock ends is ended.",
            show_default="forever",
        ),
    ] = FOREVER,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            parser=duration,
            metavar="DURATION",
            help="When the lock is lost: the time between SIGTERM and SIGKILL.",
            show_default="10s",
        ),
    ] = 10,
    execution_id: Annotated[
        str, typer.Option("--execution-id", metavar="ID", help="For `backstay locks cleanup`, if we die.")
    ] = "",
    workflow_id: Annotated[str, typer.Option("--workflow-id", metavar="ID", help="Shown to others who wait.")] = "",
    workflow_name: Annotated[
        str, typer.Option("--workflow-name", metavar="TEXT", help="The same.", show_default="the command's name")
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell of waiting and acquiring, also without a terminal.")
    ] = False,
) -> None:
    """Run a command while holding a lock; its exit code is passed on.

    The command finds BACKSTAY_LOCK_NAME, BACKSTAY_LOCK_ID and BACKSTAY_FENCE in
    its environment, and gets every signal that is sent to backstay. The lock is
    renewed while it runs and released when it has ended. If the lock is lost
    meanwhile, the command and what it started are ended.

    [bold]Examples[/bold]

      backstay lock nightly-report -- ./report.sh --verbose

      backstay lock deploy --wait 5m -- make deploy

      backstay lock import --no-wait -- ./import.py || echo "not now"

      backstay lock gpu --semaphore 4 -- python train.py

      backstay lock docs --read -- tar czf docs.tgz docs

    [bold]Exit codes[/bold]

      75 not acquired in time, 76 lost while the command ran,
      126 not executable, 127 not found, 128+N ended by signal N,
      2 wrong usage, 3 engine unreachable; else the command's own
    """
    if not name or not command or not command[0]:
        raise typer.BadParameter("pass a name and a command, as in: backstay lock NAME -- COMMAND")
    if sum((semaphore is not None, read, write)) > 1:
        raise typer.BadParameter("--semaphore, --read and --write exclude one another")
    if no_wait and wait != FOREVER:
        raise typer.BadParameter("--wait and --no-wait exclude one another")
    if code := unusable(command[0]):
        why = "not found" if code == exit_codes.NOT_FOUND else "not executable"
        warn(f"cannot run {shlex.quote(command[0])}: {why}")
        raise typer.Exit(code)

    longest = min(max_hold, LONGEST_DURATION)

    def gate(stay: Backstay) -> Gate:
        if semaphore is not None:
            return stay.semaphore(name, semaphore, ttl=ttl, max_hold=longest)
        if read or write:
            sides = stay.rwlock(name, ttl=ttl, max_hold=longest)
            return sides.read() if read else sides.write()
        return stay.lock(name, ttl=ttl, max_hold=longest)

    wish = Wish(
        name=name,
        command=tuple(command),
        gate=gate,
        wait=0 if no_wait else None if wait == FOREVER else wait,
        grace=grace,
        execution_id=execution_id,
        workflow_id=workflow_id,
        workflow_name=workflow_name,
        verbose=verbose,
    )
    _leave(asyncio.run(hold(connection(context), wish)))


def _leave(outcome: Outcome) -> None:
    if outcome.interrupted:
        # Ctrl-C was meant for the whole job, but only the command was in front: a script around us must stop, too.
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGINT)
    raise typer.Exit(outcome.exit_code)
