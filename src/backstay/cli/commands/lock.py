"""`backstay lock NAME -- COMMAND`: the options. `locked_command` runs the command."""

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
from backstay.cli.locked_command.run_locked import Acquirable, LockOutcome, LockRequest, check_program, run_locked
from backstay.cli.output import warn
from backstay.runtime.validation import LONGEST_DURATION


def lock(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.", show_default=False)],
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="The command to run under the lock, with its arguments.", show_default=False
        ),
    ],
    *,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl",
            parser=duration,
            metavar="DURATION",
            help="How long the lock stays held if this process dies. It is renewed while the command runs.",
            show_default="30s",
        ),
    ] = 30,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=duration_or_forever,
            metavar="DURATION|forever",
            help="How long to wait for the lock.",
            show_default="forever",
        ),
    ] = FOREVER,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait: acquire the lock at once or fail.")] = False,
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
            help="Stop renewing after this time; a command that still runs when the lock expires is terminated.",
            show_default="forever",
        ),
    ] = FOREVER,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            parser=duration,
            metavar="DURATION",
            help="The time between SIGTERM and SIGKILL when the lock is lost.",
            show_default="10s",
        ),
    ] = 10,
    execution_id: Annotated[
        str,
        typer.Option(
            "--execution-id", metavar="ID", help="The id that `backstay locks cleanup` looks for after a crash."
        ),
    ] = "",
    workflow_id: Annotated[str, typer.Option("--workflow-id", metavar="ID", help="Shown to waiting callers.")] = "",
    workflow_name: Annotated[
        str,
        typer.Option(
            "--workflow-name", metavar="TEXT", help="Shown to waiting callers.", show_default="the command's name"
        ),
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Report waiting and acquiring, also without a terminal.")
    ] = False,
) -> None:
    """Run a command while holding a lock, and exit with the command's exit code.

    The command gets BACKSTAY_LOCK_NAME, BACKSTAY_LOCK_ID and BACKSTAY_FENCE in
    its environment, and every signal that is sent to backstay. The lock is
    renewed while the command runs and released when it ends. If the lock is
    lost, the command and its child processes are terminated.

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
        raise typer.BadParameter("--semaphore, --read and --write cannot be combined")
    if no_wait and wait != FOREVER:
        raise typer.BadParameter("--wait and --no-wait cannot be combined")
    if code := check_program(command[0]):
        why = "not found" if code == exit_codes.NOT_FOUND else "not executable"
        warn(f"cannot run {shlex.quote(command[0])}: {why}")
        raise typer.Exit(code)

    longest = min(max_hold, LONGEST_DURATION)

    def gate(stay: Backstay) -> Acquirable:
        if semaphore is not None:
            return stay.semaphore(name, semaphore, ttl=ttl, max_hold=longest)
        if read or write:
            sides = stay.rwlock(name, ttl=ttl, max_hold=longest)
            return sides.read() if read else sides.write()
        return stay.lock(name, ttl=ttl, max_hold=longest)

    request = LockRequest(
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
    _exit(asyncio.run(run_locked(connection(context), request)))


def _exit(outcome: LockOutcome) -> None:
    if outcome.interrupted:
        # The kernel sent Ctrl-C only to the foreground command. Exit by SIGINT, so that a calling script stops, too.
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGINT)
    raise typer.Exit(outcome.exit_code)
