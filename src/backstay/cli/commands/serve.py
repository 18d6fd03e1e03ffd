"""`backstay serve`: the HTTP API, with the scheduler, the reaper and (if asked) a worker beside it."""

from __future__ import annotations

import asyncio
import logging
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from backstay.cli.commands.worker import parse_queues, split_names
from backstay.cli.connection import connection
from backstay.cli.durations import duration
from backstay.cli.find_app import find_app
from backstay.cli.output import say
from backstay.errors import ConfigError
from backstay.job.worker.blocking import new_loop

LEVELS = ("debug", "info", "warning", "error")


def serve(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="A program whose jobs and cron entries are to be known, as in shop.jobs:stay.",
            show_default=False,
        ),
    ] = "",
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Where to listen; 0: any that is free.")
    ] = 3000,
    api_only: Annotated[
        bool, typer.Option("--api-only", help="Requests only: `backstay scheduler` runs elsewhere.")
    ] = False,
    with_worker: Annotated[bool, typer.Option("--worker", help="Run jobs in this process, too.")] = False,
    queues: Annotated[
        str, typer.Option("--queues", "-q", metavar="NAMES", help="Queues of that worker, as in a,b.")
    ] = "default",
    labels: Annotated[str, typer.Option("--labels", "-l", metavar="NAMES", help="Labels of that worker.")] = "",
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Jobs at once of that worker.")
    ] = 10,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="That worker runs the commands of workflows, too.")
    ] = False,
    artifacts: Annotated[
        str,
        typer.Option("--artifacts", metavar="PATH", help="Keep the files that jobs leave here, not in the engine."),
    ] = "",
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            parser=duration,
            metavar="DURATION",
            help="How long jobs and decisions of this process stay away when it dies.",
            show_default="30s",
        ),
    ] = 30,
    workflows: Annotated[
        str,
        typer.Option(
            "--workflows",
            metavar="DIRECTORY",
            help="Workflows (*.yml, *.json) that are loaded, and again when changed.",
        ),
    ] = "",
    require_tokens: Annotated[
        bool, typer.Option("--require-tokens", help="Refuse requests without a token, even while there is none.")
    ] = False,
    rate: Annotated[
        str,
        typer.Option("--rate", metavar="RATE", help="Requests of one caller, as in 100/second; none: any number."),
    ] = "5000/second",
    cors: Annotated[
        str,
        typer.Option("--cors", metavar="ORIGINS", help="Origins whose pages may read, as in https://ops.example.org."),
    ] = "",
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="A line of JSON for each request, on standard error.")
    ] = True,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning, error.")
    ] = "info",
) -> None:
    """Serve the HTTP API: workflows, jobs, the worker protocol, locks, limits.

    With it come the scheduler (cron, time limits of runs), the reaper and the
    decisions of workflows; [bold]--worker[/bold] runs jobs as well. Any number of servers
    may share one engine; [bold]--api-only[/bold] leaves the rest to [bold]backstay scheduler[/bold].

    Only this machine can reach it unless [bold]--host[/bold] says otherwise, and that needs
    tokens: backstay token create --role admin

    SIGTERM or Ctrl-C ends streams and long polls, lets requests end, and
    drains the worker. Once more stops at once.

    [bold]Examples[/bold]

      backstay serve

      backstay serve --worker --allow-commands --workflows ci/

      backstay --url redis://127.0.0.1:6379/0 serve --host 0.0.0.0 --api-only

      BACKSTAY_URL=postgresql://app@db/app backstay serve shop.jobs:stay --worker
    """
    if find_spec("uvicorn") is None:
        raise ConfigError("the server needs its extra: pip install 'backstay[server]'")
    from backstay.server import hosting
    from backstay.server.settings import Settings

    if log_level not in LEVELS:
        raise typer.BadParameter(f"{log_level!r} is none of {', '.join(LEVELS)}", param_hint="--log-level")
    if api_only and (with_worker or allow_commands):
        raise typer.BadParameter("--api-only runs no worker; leave out --worker and --allow-commands")
    if allow_commands and not with_worker:
        raise typer.BadParameter("--allow-commands goes with --worker")
    logs(log_level)
    options: dict[str, Any] | None = None
    if with_worker:
        options = {
            "queues": parse_queues(queues),
            "labels": split_names(labels),
            "concurrency": concurrency,
            "lease": lease,
            "allow_commands": allow_commands,
            "artifacts": artifacts,
        }
    plan = hosting.Plan(
        host=host,
        port=port,
        api_only=api_only,
        worker=options,
        lease=lease,
        workflows=workflows,
        settings=Settings(
            require_tokens=require_tokens,
            rate="" if rate == "none" else rate,
            access_log=access_log,
            artifacts=artifacts,
            cors=tuple(split_names(cors)),
        ),
    )
    stay = find_app(target) if target else connection(context).create()

    async def run() -> None:
        try:
            await hosting.serve(stay, plan, _started)
        finally:
            await stay.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def _started(url: str) -> None:
    say(f"listening on {url}")
    sys.stdout.flush()  # whoever started us may wait for this line


def logs(level: str) -> None:
    """Lines for people; those of requests are JSON already."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    access = logging.getLogger("backstay.access")
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(plain)
    access.propagate = False
