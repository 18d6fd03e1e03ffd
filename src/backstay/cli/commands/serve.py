"""`backstay serve`: the HTTP API with the scheduler, the reaper and optionally a worker."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from backstay.cli.commands.worker import parse_queues, split_names
from backstay.cli.connection import connection
from backstay.cli.durations import duration
from backstay.cli.find_app import find_app
from backstay.cli.logs import configure_logging
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
            help="A program whose jobs and cron entries to load, as in shop.jobs:stay.",
            show_default=False,
        ),
    ] = "",
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port to listen on; 0: any free port.")
    ] = 3000,
    api_only: Annotated[
        bool, typer.Option("--api-only", help="Serve requests only; run `backstay scheduler` elsewhere.")
    ] = False,
    with_worker: Annotated[bool, typer.Option("--worker", help="Run a worker in this process, too.")] = False,
    queues: Annotated[
        str, typer.Option("--queues", "-q", metavar="NAMES", help="Queues of the worker, as in a,b.")
    ] = "default",
    labels: Annotated[str, typer.Option("--labels", "-l", metavar="NAMES", help="Labels of the worker.")] = "",
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-c", metavar="N", min=1, help="The number of concurrent jobs of the worker."),
    ] = 10,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="The worker runs the commands of workflows, too.")
    ] = False,
    artifacts: Annotated[
        str,
        typer.Option("--artifacts", metavar="PATH", help="A directory for artifacts, instead of the engine."),
    ] = "",
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            parser=duration,
            metavar="DURATION",
            help="The lease of jobs and decisions: how long they stay claimed if this process dies.",
            show_default="30s",
        ),
    ] = 30,
    workflows: Annotated[
        str,
        typer.Option(
            "--workflows",
            metavar="DIRECTORY",
            help="A directory of workflows (*.yml, *.json) to load, and to reload when they change.",
        ),
    ] = "",
    require_tokens: Annotated[
        bool, typer.Option("--require-tokens", help="Refuse requests without a token, even while no token exists.")
    ] = False,
    rate: Annotated[
        str,
        typer.Option("--rate", metavar="RATE", help="The rate limit of one caller, as in 100/second; none: no limit."),
    ] = "5000/second",
    cors: Annotated[
        str,
        typer.Option(
            "--cors", metavar="ORIGINS", help="Origins whose pages may read responses, as in https://ops.example.org."
        ),
    ] = "",
    trusted_proxies: Annotated[
        str,
        typer.Option(
            "--trusted-proxies",
            metavar="NETWORKS",
            help="Proxies whose X-Forwarded-For names the client, as in 10.0.0.0/8.",
        ),
    ] = "",
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Log each request as a line of JSON on standard error.")
    ] = True,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning, error.")
    ] = "info",
) -> None:
    """Serve the HTTP API: workflows, jobs, the worker protocol, locks, limits.

    The process also runs the scheduler (cron, timeouts of runs), the reaper (jobs whose
    lease expired) and the decisions of runs (for example, whether the condition of a job
    holds). With [bold]--api-only[/bold] it leaves these to [bold]backstay scheduler[/bold].
    [bold]--worker[/bold] adds a worker. Any number of servers may share one engine.

    With [bold]--url memory://[/bold] all data is in this process and ends with it: for tests and
    demonstrations, with workers over HTTP or with [bold]--worker[/bold].

    The server listens on loopback. Another [bold]--host[/bold] needs tokens:
    backstay token create --role admin

    SIGTERM or Ctrl-C ends streams and long polls, finishes requests, and drains the
    worker: its running jobs may finish. A second signal stops the process at once.

    [bold]Examples[/bold]

      backstay serve

      backstay serve --worker --allow-commands --workflows ci/

      backstay --url memory:// serve --worker --allow-commands

      backstay --url redis://127.0.0.1:6379/0 serve --host 0.0.0.0 --api-only

      BACKSTAY_URL=postgresql://app@db/app backstay serve shop.jobs:stay --worker
    """
    if find_spec("uvicorn") is None:
        raise ConfigError("the server needs its extra: pip install 'backstay[server]'")
    from backstay.server import hosting
    from backstay.server.settings import ServerSettings

    if log_level not in LEVELS:
        raise typer.BadParameter(f"{log_level!r} is not one of {', '.join(LEVELS)}", param_hint="--log-level")
    if api_only and (with_worker or allow_commands):
        raise typer.BadParameter("--api-only runs no worker; leave out --worker and --allow-commands")
    if allow_commands and not with_worker:
        raise typer.BadParameter("--allow-commands needs --worker")
    configure_logging(log_level)
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
    plan = hosting.HostOptions(
        host=host,
        port=port,
        api_only=api_only,
        worker=options,
        lease=lease,
        workflows=workflows,
        settings=ServerSettings(
            require_tokens=require_tokens,
            rate="" if rate == "none" else rate,
            access_log=access_log,
            artifacts=artifacts,
            cors=tuple(split_names(cors)),
            trusted_proxies=tuple(split_names(trusted_proxies)),
        ),
    )
    # Without --api-only, the server needs no other process: its clients and workers use HTTP, or run inside it.
    stay = find_app(target) if target else connection(context).create(private=not api_only)

    async def run() -> None:
        try:
            await hosting.serve(stay, plan, _announce)
        finally:
            await stay.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def _announce(url: str) -> None:
    say(f"listening on {url}")
    sys.stdout.flush()  # a parent process may wait for this line
