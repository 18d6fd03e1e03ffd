"""`backstay runs`: inspect, cancel and re-run runs of workflows."""

from __future__ import annotations

import time
from typing import Annotated, Any, cast, get_args

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import fetch_or_exit, printable, say, say_json, say_table
from backstay.cli.views import jobs as job_views
from backstay.cli.views import runs
from backstay.cli.views.log_lines import LineJoiner
from backstay.job.model import FINAL
from backstay.job.run_model import FINISHED, RunStatus
from backstay.runtime.flows import run as do
from backstay.sync import Backstay
from backstay.workflow import flows

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Id = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="JOB", help="The job's name in the run.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end of the run; the exit code reports its status.")]

#: Seconds between polls of `logs --follow`.
POLL_SECONDS = 0.3


@app.callback()
def group() -> None:
    """Inspect, cancel and re-run runs of workflows."""


@app.command("ls")
def list_runs(
    context: typer.Context,
    *,
    workflow: Annotated[str, typer.Option("--workflow", metavar="NAME", help="Only runs of this workflow.")] = "",
    status: Annotated[
        str, typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(get_args(RunStatus))}.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="The most runs to list.")] = 50,
    before: Annotated[
        str, typer.Option("--before", metavar="ID", help="The next page: pass the last id of this one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first.

    [bold]Examples[/bold]

      backstay runs ls

      backstay runs ls --workflow ci --status failure --json | jq -r '.runs[].id'
    """
    if status and status not in get_args(RunStatus):
        raise typer.BadParameter(f"{status!r} is not one of {', '.join(get_args(RunStatus))}", param_hint="--status")
    with connection(context).existing() as stay:
        listed = stay.runs.list(
            workflow=workflow, status=cast("RunStatus", status) if status else None, before=before, limit=limit
        )
        now = stay.engine.now() / 1_000_000
    if as_json:
        say_json({"runs": [runs.run_json(run) for run in listed]})
    elif listed:
        say_table(runs.RUN_COLUMNS, (runs.run_row(run, now) for run in listed), right=("age", "took"))
        if len(listed) == limit:
            say(f"Next page: --before {listed[-1].id}")
    else:
        say("No run matches.")


@app.command()
def show(context: typer.Context, run_id: Id, *, as_json: AsJson = False) -> None:
    """Show one run: its status and each of its jobs.

    [bold]Examples[/bold]

      backstay runs show 0-19a8c3d2f4100000a1b2c3d4e5f6

      backstay runs show 0-19a8c3d2f4100000a1b2c3d4e5f6 --json | jq '.jobs[] | {key, state}'
    """
    with connection(context).existing() as stay:
        run = fetch_or_exit(lambda: stay.runs.get(run_id))
        jobs = fetch_or_exit(lambda: stay.runs.jobs(run_id))
        now = stay.engine.now() / 1_000_000
    if as_json:
        say_json({**runs.run_json(run), "jobs": [runs.job_json(job) for job in jobs]})
    else:
        runs.run_page(run, jobs, now)


@app.command()
def cancel(
    context: typer.Context,
    run_id: Id,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Stored with the run.")] = "",
    as_json: AsJson = False,
) -> None:
    """Cancel a run: waiting jobs at once, running jobs through their workers.

    [bold]Examples[/bold]

      backstay runs cancel 0-19a8c3d2f4100000a1b2c3d4e5f6 --reason "wrong branch"
    """
    with connection(context).existing() as stay:
        status = fetch_or_exit(lambda: stay.runs.cancel(run_id, reason))
    _report(run_id, status, as_json=as_json, still="is stopping")


@app.command()
def retry(context: typer.Context, run_id: Id, key: Key, *, as_json: AsJson = False) -> None:
    """Run one job of a run again now, with its full number of attempts.

    Jobs that were skipped because this job failed wait for it again. A job whose needs did not succeed
    cannot be retried: retry the needs, and the job runs after them.

    [bold]Examples[/bold]

      backstay runs retry 0-19a8c3d2f4100000a1b2c3d4e5f6 build
    """
    with connection(context).existing() as stay:
        state = fetch_or_exit(lambda: stay.runs.retry(run_id, key))
    if as_json:
        say_json({"id": run_id, "job": key, "state": state})
    else:
        say(f"{printable(key)} is {state}.")


@app.command()
def rerun(context: typer.Context, run_id: Id, *, wait: Wait = False, as_json: AsJson = False) -> None:
    """Run the failed and cancelled jobs of a finished run again.

    [bold]Examples[/bold]

      backstay runs rerun 0-19a8c3d2f4100000a1b2c3d4e5f6 --wait
    """
    with connection(context).existing() as stay:
        status = fetch_or_exit(lambda: stay.runs.rerun_failed(run_id))
        if wait:
            status = stay.runs.handle(run_id).wait()
    _report(run_id, status, as_json=as_json)
    if wait and status != "success":
        raise typer.Exit(exit_codes.FAILED)


@app.command()
def logs(
    context: typer.Context,
    run_id: Id,
    key: Annotated[
        str, typer.Argument(metavar="[JOB]", help="One job of the run; the default is all.", show_default=False)
    ] = "",
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the logs of a run's jobs. The lines of each job are in order.

    [bold]Examples[/bold]

      backstay runs logs 0-19a8c3d2f4100000a1b2c3d4e5f6 --follow

      backstay runs logs 0-19a8c3d2f4100000a1b2c3d4e5f6 "test (3.11)"
    """
    with connection(context).existing() as stay:
        lines: list[dict[str, Any]] = []
        text = LineJoiner()
        seen: Seen = {}
        while True:
            ended = (
                fetch_or_exit(lambda: stay.runs.get(run_id)).status in FINISHED
            )  # the status is read before the logs, so that no line that precedes the end is missed
            for job, one in _new_lines(stay, run_id, key, seen):
                if as_json:
                    lines.append({"job": job, **job_views.line_json(one)})
                    continue
                for line in text.feed(job, one):
                    say(line if key else f"{printable(job)} | {line}")
            if ended or not follow:
                break
            time.sleep(POLL_SECONDS)
    for job, line in text.take_unfinished():
        say(line if key else f"{printable(job)} | {line}")
    if as_json:
        say_json({"id": run_id, "lines": lines})


#: By chain id: the number of the last line read, and, once the chain's last job has ended, its (id, state, attempt). A
#: chain with unchanged (id, state, attempt) has no new lines and is not read again.
Seen = dict[str, tuple[int, tuple[str, str, int] | None]]


def _new_lines(stay: Backstay, run_id: str, key: str, seen: Seen) -> list[tuple[str, Any]]:
    """Return the log lines that were written since the last call, each with its job's key. `seen` is updated."""
    core = stay.internals.core
    lines: list[tuple[str, Any]] = []
    jobs = fetch_or_exit(lambda: stay.runs.jobs(run_id))
    wanted = [job for job in jobs if not key or key in (job.key, job.name, job.id)]
    if key and not wanted:
        fetch_or_exit(lambda: stay.runs.logs(run_id, key))
    for job in wanted:
        chain, stands = job.info.chain, (job.id, job.state, job.info.attempt)
        last, then = seen.get(chain, (0, None))
        if then == stands or (not job.info.attempt and job.id == chain):
            continue
        while more := do(flows.read_chain_logs(core, chain, last)):
            last = more[-1].seq
            lines += [(job.key, one) for one in more]
        seen[chain] = last, stands if job.state in FINAL else None
    return lines


def _report(run_id: str, status: str, *, as_json: bool, still: str = "runs again") -> None:
    if as_json:
        say_json({"id": run_id, "status": status})
    elif status in FINISHED:
        say(f"{printable(run_id)} is {status}." if status == "cancelled" else f"{printable(run_id)} ended: {status}.")
    else:
        say(f"{printable(run_id)} {still}.")
