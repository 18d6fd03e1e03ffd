"""`backstay run FILE`: run all jobs of a workflow on this machine."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from backstay.cli import exit_codes
from backstay.cli.durations import duration
from backstay.cli.local_run import RunOutcome, RunRequest, count_cores, run_locally, select_jobs
from backstay.cli.output import printable, say, say_json, warn
from backstay.cli.views.run_lines import RunLines
from backstay.cli.views.run_progress import RunProgress
from backstay.cli.views.run_watch import Viewer
from backstay.errors import BadDefinition, ConfigError
from backstay.job.worker import outcome_stats
from backstay.job.worker.blocking import new_loop
from backstay.workflow.definition import Workflow


def run(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The workflow, YAML or JSON; - is standard input.", show_default=False),
    ],
    *,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help="An input. May be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable for all jobs. May be repeated."),
    ] = None,
    jobs: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="ID", help="Run only this job and the jobs that it needs. May be repeated."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-c", metavar="N", min=1, help="The number of concurrent jobs.", show_default="cores"
        ),
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast/--keep-going",
            help="Cancel the other jobs when a job fails, or run all jobs that can still run.",
        ),
    ] = False,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            parser=duration,
            metavar="DURATION",
            help="How long commands may take to end after SIGTERM.",
            show_default="5s",
        ),
    ] = 5,
    directory: Annotated[
        str, typer.Option("--directory", metavar="PATH", help="Where commands run.", show_default="here")
    ] = ".",
    pass_env: Annotated[
        str,
        typer.Option(
            "--pass-env",
            metavar="NAMES",
            help="Variables that commands get, as in JAVA_HOME,GO*; * does not match secrets.",
        ),
    ] = "*",  # noqa: S107 - which variables pass, not a password
    secrets: Annotated[
        str,
        typer.Option("--secrets", metavar="NAMES", help="Variables that commands get and logs never show."),
    ] = "",
    logs: Annotated[
        bool | None,
        typer.Option("--logs/--no-logs", help="Print the output of jobs.", show_default="not on a terminal"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as JSON; everything else goes to standard error.")
    ] = False,
) -> None:
    """Run all jobs of a workflow on this machine, each after the jobs that it needs.

    This needs no server, no worker and no database. Commands run as the current
    user; jobs that do not need one another run in parallel. A terminal shows a
    tree of the jobs; a file or pipe gets one line per event.

    The first Ctrl-C cancels the run and sends SIGTERM to its commands; a second one
    stops at once.

    [bold]Examples[/bold]

      backstay run ci.yml

      backstay run release.yml --input version=1.2 --secrets DEPLOY_TOKEN

      backstay run ci.yml --job test --fail-fast

      backstay run ci.yml --json | jq .status

    [bold]Exit codes[/bold]

      0 success, 1 a job failed, 2 the file or an option is wrong,
      130 cancelled by Ctrl-C, 143 by SIGTERM
    """
    workflow = select_jobs(read_file(file), tuple(jobs or ()))
    if given := parse_pairs(env or (), "--env"):
        workflow = replace(workflow, env={**workflow.env, **given})
    request = RunRequest(
        workflow=workflow,
        inputs=parse_pairs(inputs or (), "--input"),
        concurrency=concurrency or count_cores(),
        fail_fast=fail_fast,
        grace=grace,
        directory=directory,
        pass_env=split_names(pass_env),
        secrets=split_names(secrets),
    )
    log = logging.getLogger("backstay")
    with ExitStack() as stack, asyncio.Runner(loop_factory=new_loop) as runner:
        log.addFilter(_is_not_job_outcome)
        stack.callback(log.removeFilter, _is_not_job_outcome)
        outcome = runner.run(run_locally(request, _viewer(stack, workflow, logs=logs, as_json=as_json)))
    _report(outcome, as_json=as_json)
    if outcome.signal:
        raise typer.Exit(exit_codes.SIGNALLED + outcome.signal)
    raise typer.Exit(exit_codes.OK if outcome.run.status == "success" else exit_codes.FAILED)


def _is_not_job_outcome(record: logging.LogRecord) -> bool:
    """A logging filter that drops the worker's log lines about finished jobs: the tree or the lines that `run` prints
    already show how each job ended.
    """
    return record.pathname != outcome_stats.__file__


def read_file(file: str) -> Workflow:
    """Read a workflow from a file or, for `-`, from standard input. For an invalid workflow, print one line per problem
    and exit with code 2.
    """
    from backstay.workflow.document.yaml import read as read_workflow

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    try:
        return read_workflow(raw, name=Path(file).stem if file != "-" else "workflow", source=file)
    except BadDefinition as error:
        for problem in error.problems:
            place = f"{file}:{problem.line}:{problem.column}" if problem.line else file
            warn(f"{place}: {problem.message}")
        raise typer.Exit(exit_codes.USAGE) from error


def _viewer(
    stack: ExitStack, workflow: Workflow, *, logs: bool | None, as_json: bool
) -> Callable[[RunProgress], Viewer]:
    out = sys.stderr if as_json else sys.stdout
    if not out.isatty():
        return lambda progress: RunLines(progress, out=out, quiet=logs is False)

    def tree(progress: RunProgress) -> Viewer:
        from rich.console import Console

        from backstay.cli.views.run_tree import Tree

        return stack.enter_context(Tree(progress, workflow.name, Console(file=out), logs=bool(logs)))

    return tree


def _report(outcome: RunOutcome, *, as_json: bool) -> None:
    run, progress = outcome.run, outcome.progress
    seconds = max(0, run.finished - run.created) / 1_000_000
    if as_json:
        say_json(
            {
                "run": run.id,
                "workflow": run.workflow,
                "status": run.status,
                "reason": run.reason,
                "seconds": round(seconds, 3),
                "jobs": {row.key: _job(row) for row in progress.rows.values()},
            }
        )
        return
    bad = [row.key for row in progress.rows.values() if row.is_bad]
    why = f": {', '.join(map(printable, bad))} failed" if bad else f": {printable(run.reason)}" if run.reason else ""
    say(f"{printable(run.workflow)}: {run.status} after {seconds:.1f} s{why}")


def _job(row: Any) -> dict[str, Any]:
    return {
        "status": row.status,
        "attempts": row.attempt,
        "seconds": round(row.seconds(row.finished), 3) if row.finished else 0.0,
        "outputs": row.outputs,
        "error": row.why if row.status != "success" else "",
    }


def parse_pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE options. If a name is repeated, its last value is used."""
    found: dict[str, str] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{entry!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def split_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)
