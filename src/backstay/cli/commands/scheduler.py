"""`backstay scheduler`: what happens by itself, without a server or a worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from backstay import Backstay
from backstay.cli.commands.worker import Keep
from backstay.cli.connection import connection
from backstay.cli.durations import duration
from backstay.cli.find_app import find_app
from backstay.job.reserved import INTERNAL
from backstay.job.scheduler.scheduler import KEEP
from backstay.job.worker.blocking import new_loop

log = logging.getLogger("backstay")


def scheduler(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="A program whose cron entries are to be served, as in shop.jobs:stay.",
            show_default=False,
        ),
    ] = "",
    *,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Decisions of runs at once.")
    ] = 10,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            parser=duration,
            metavar="DURATION",
            help="How long decisions of this process stay away when it dies.",
            show_default="30s",
        ),
    ] = 30,
    keep: Keep = KEEP,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning, error.")
    ] = "info",
) -> None:
    """Look after jobs and runs: cron, time limits, lost leases, decisions, pruning.

    For set-ups whose servers run with --api-only. Any number may run at
    once; each tick and each decision happens once all the same.

    [bold]Examples[/bold]

      backstay --url redis://127.0.0.1:6379/0 scheduler

      backstay scheduler shop.jobs:stay
    """
    from backstay.cli.commands.serve import LEVELS, logs

    if log_level not in LEVELS:
        raise typer.BadParameter(f"{log_level!r} is none of {', '.join(LEVELS)}", param_hint="--log-level")
    logs(log_level)
    stay = find_app(target) if target else connection(context).create()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(stay, concurrency, lease, keep))


async def _run(stay: Backstay, concurrency: int, lease: float, keep: int) -> None:
    try:
        made = stay.worker(queues=[INTERNAL], concurrency=concurrency, lease=lease, keep=keep)
        log.info("scheduler %s", made.id)
        await made.run()
    finally:
        await stay.close()
