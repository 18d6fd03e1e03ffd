"""`backstay jobs`: inspect, retry and cancel jobs."""

from __future__ import annotations

import sys
import time
from typing import Annotated, cast, get_args

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import fetch_or_exit, printable, quote, say, say_json, say_table, warn
from backstay.cli.views import jobs
from backstay.cli.views.log_lines import LineJoiner
from backstay.job.model import FINAL, LogLine, State
from backstay.sync import Backstay

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]
Queue = Annotated[str, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.")]
Type = Annotated[str, typer.Option("--type", metavar="NAME", help="Only jobs of this type.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="The most jobs to list.")]
Before = Annotated[str, typer.Option("--before", metavar="ID", help="The next page: pass the last id of this one.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

#: Seconds between polls of `logs --follow`.
POLL_SECONDS = 0.5


@app.callback()
def group() -> None:
    """Inspect, retry and cancel jobs."""


@app.command("ls")
def list_jobs(
    context: typer.Context,
    *,
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help=f"Only these: {', '.join(get_args(State))}.")
    ] = "",
    queue: Queue = "",
    type_: Type = "",
    limit: Limit = 50,
    before: Before = "",
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first.

    [bold]Examples[/bold]

      backstay jobs ls

      backstay jobs ls --state running --queue mail

      backstay jobs ls --type resize --json | jq -r '.jobs[].id'
    """
    if state and state not in get_args(State):
        raise typer.BadParameter(f"{state!r} is not one of {', '.join(get_args(State))}", param_hint="--state")
    with connection(context).existing() as stay:
        listed = stay.jobs.list(
            state=cast("State", state) if state else None, queue=queue, type=type_, before=before, limit=limit
        )
        now = _engine_now(stay)
    if as_json:
        say_json({"jobs": [jobs.as_json(job) for job in listed]})
    elif listed:
        say_table(jobs.COLUMNS, (jobs.row(job, now) for job in listed), right=jobs.RIGHT)
        if len(listed) == limit:
            say(f"Next page: --before {listed[-1].id}")
    else:
        say("No job matches.")


@app.command()
def show(context: typer.Context, job_id: Id, *, as_json: AsJson = False) -> None:
    """Show one job: its arguments, state, result and last error.

    [bold]Examples[/bold]

      backstay jobs show 0-19a8c3d2f4100000a1b2c3d4e5f6

      backstay jobs show 0-19a8c3d2f4100000a1b2c3d4e5f6 --json | jq .error
    """
    with connection(context).existing() as stay:
        job = fetch_or_exit(lambda: stay.jobs.get(job_id))
        outputs = fetch_or_exit(lambda: stay.jobs.outputs(job_id))
        now = _engine_now(stay)
    if as_json:
        say_json({**jobs.as_json(job), "outputs": outputs})
    else:
        jobs.page(job, outputs, now)


@app.command()
def retry(context: typer.Context, job_id: Id, *, as_json: AsJson = False) -> None:
    """Run a job again now, with its full number of attempts.

    The job must have failed, been cancelled or been skipped, or be scheduled for later.
    To retry all failed jobs: backstay jobs dead --retry-all

    [bold]Examples[/bold]

      backstay jobs retry 0-19a8c3d2f4100000a1b2c3d4e5f6
    """
    with connection(context).existing() as stay:
        state = fetch_or_exit(lambda: stay.jobs.retry(job_id))
    if as_json:
        say_json({"id": job_id, "state": state})
    else:
        say(f"{printable(job_id)} is {state}.")


@app.command()
def cancel(
    context: typer.Context,
    job_id: Id,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Stored with the job.")] = "",
    as_json: AsJson = False,
) -> None:
    """Cancel a job: at once when it is not running; otherwise its worker stops it.

    [bold]Examples[/bold]

      backstay jobs cancel 0-19a8c3d2f4100000a1b2c3d4e5f6 --reason "wrong customer"
    """
    with connection(context).existing() as stay:
        state = fetch_or_exit(lambda: stay.jobs.cancel(job_id, reason))
    if as_json:
        say_json({"id": job_id, "state": state})
    elif state == "running":
        say(f"{printable(job_id)} is running; its worker will stop it.")
    else:
        say(f"{printable(job_id)} is {state}.")


@app.command()
def logs(
    context: typer.Context,
    job_id: Id,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the log of a job.

    [bold]Examples[/bold]

      backstay jobs logs 0-19a8c3d2f4100000a1b2c3d4e5f6 --follow
    """
    with connection(context).existing() as stay:
        lines: list[LogLine] = []
        text = LineJoiner()
        after = 0
        while True:
            ended = (
                fetch_or_exit(lambda: stay.jobs.get(job_id)).state in FINAL
            )  # the state is read before the log, so that no line that precedes the end is missed
            while more := stay.jobs.logs(job_id, after):
                after = more[-1].seq
                lines += more
                if not as_json:
                    for chunk in more:
                        for line in text.feed(job_id, chunk):
                            say(line)
            if ended or not follow:
                break
            time.sleep(POLL_SECONDS)
    for _, line in text.take_unfinished():
        say(line)
    if as_json:
        say_json({"id": job_id, "lines": [jobs.line_json(line) for line in lines]})


@app.command()
def dead(
    context: typer.Context,
    *,
    queue: Queue = "",
    type_: Type = "",
    limit: Limit = 50,
    before: Before = "",
    retry_all: Annotated[bool, typer.Option("--retry-all", help="Run all of them again.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Delete all of them.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List, retry or delete the dead letter: jobs that failed and are not retried automatically.

    [bold]Examples[/bold]

      backstay jobs dead

      backstay jobs dead --type resize --retry-all

      backstay jobs dead --queue mail --purge --yes
    """
    if retry_all and purge:
        raise typer.BadParameter("--retry-all and --purge cannot be combined")
    if purge and type_:
        raise typer.BadParameter("--purge works with --queue only, not with --type")
    with connection(context).existing() as stay:
        if retry_all:
            _report("retried", stay.jobs.dead.retry_all(queue=queue, type=type_), as_json=as_json)
        elif purge:
            where = f" of queue {quote(queue)}" if queue else ""
            if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete the dead letter{where}?", err=True):
                warn("nothing was deleted")
                raise typer.Exit(exit_codes.FAILED)
            _report("deleted", stay.jobs.dead.purge(queue=queue), as_json=as_json)
        else:
            listed = stay.jobs.dead.list(queue=queue, type=type_, before=before, limit=limit)
            now = _engine_now(stay)
            if as_json:
                say_json({"jobs": [jobs.as_json(job) for job in listed]})
            elif listed:
                say_table(jobs.COLUMNS, (jobs.row(job, now) for job in listed), right=jobs.RIGHT)
            else:
                say("The dead letter is empty.")


def _report(what: str, count: int, *, as_json: bool) -> None:
    if as_json:
        say_json({what: count})
    else:
        say(f"{count} job{'' if count == 1 else 's'} {what}.")


def _engine_now(stay: Backstay) -> float:
    """Return the engine's time in seconds, because the local clock may differ from it."""
    return stay.engine.now() / 1_000_000
