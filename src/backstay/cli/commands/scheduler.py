"""`backstay scheduler`: run cron, timeouts, the conditions of workflow jobs, and pruning in a separate process."""

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
from backstay.job.scheduler.pruner import KEEP
from backstay.job.worker.blocking import new_loop

log = logging.getLogger("backstay")


def scheduler(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="A program whose cron entries to run, as in shop.jobs:stay.",
            show_default=False,
        ),
    ] = "",
    *,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="The number of concurrent decisions of runs.")
    ] = 10,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            parser=duration,
            metavar="DURATION",
            help="The lease of a decision: how long it stays claimed if this process dies.",
            show_default="30s",
        ),
    ] = 30,
    keep: Keep = KEEP,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning, error.")
    ] = "info",
) -> None:
    """Run the scheduler: cron, timeouts, expired leases, pruning, and the decisions
    of runs (for example, whether the condition of a job holds).

    Needed if all servers run with --api-only. Any number of schedulers may run at
    once; each cron tick and each decision still happens only once.

    [bold]Examples[/bold]

      backstay --url redis://127.0.0.1:6379/0 scheduler

      backstay scheduler shop.jobs:stay
    """
    from backstay.cli.commands.serve import LEVELS
    from backstay.cli.logs import configure_logging

    if log_level not in LEVELS:
        raise typer.BadParameter(f"{log_level!r} is not one of {', '.join(LEVELS)}", param_hint="--log-level")
    configure_logging(log_level)
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
