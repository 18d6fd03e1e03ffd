"""`backstay worker module:app`: run the jobs of a program."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Annotated, Any

import typer

from backstay import Backstay
from backstay.cli.connection import connection
from backstay.cli.durations import duration
from backstay.cli.find_app import find_app
from backstay.cli.supervision.health import Health
from backstay.cli.supervision.supervisor import Supervisor, hear_the_end
from backstay.cli.views.burst_bar import burst_bar
from backstay.errors import ConfigError
from backstay.job.scheduler.scheduler import KEEP
from backstay.job.worker.blocking import new_loop
from backstay.job.worker.worker import CONCURRENCY

LEVELS = ("debug", "info", "warning", "error")

Keep = Annotated[
    int, typer.Option("--keep", metavar="N", min=1, help="Completed jobs that stay at most; the oldest go first.")
]


def worker(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="The program's Backstay, as in shop.jobs:stay. Not needed for commands.",
            show_default=False,
        ),
    ] = "",
    *,
    queues: Annotated[
        str,
        typer.Option(
            "--queues",
            "-q",
            metavar="NAMES",
            help="Queues to take jobs from, as in a,b; or with weights, as in mail=3,default=1.",
        ),
    ] = "default",
    labels: Annotated[
        str, typer.Option("--labels", "-l", metavar="NAMES", help="What this machine has, as in gpu,linux.")
    ] = "",
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Jobs at once, in each process.")
    ] = CONCURRENCY,
    processes: Annotated[
        int, typer.Option("--processes", "-p", metavar="N", min=1, help="Worker processes; restarted when they crash.")
    ] = 1,
    allow_commands: Annotated[
        bool,
        typer.Option("--allow-commands", help="Run the commands of workflows, too: as this user, in this directory."),
    ] = False,
    pass_env: Annotated[
        str,
        typer.Option(
            "--pass-env",
            metavar="NAMES",
            help="Variables that commands get, as in JAVA_HOME,GO*; * brings no secrets.",
        ),
    ] = "",
    secrets: Annotated[
        str,
        typer.Option("--secrets", metavar="NAMES", help="Variables that commands get and logs never show."),
    ] = "",
    directory: Annotated[
        str, typer.Option("--directory", metavar="PATH", help="Where commands run.", show_default="here")
    ] = ".",
    artifacts: Annotated[
        str,
        typer.Option("--artifacts", metavar="PATH", help="Keep the files that commands leave here, not in the engine."),
    ] = "",
    no_prefetch: Annotated[
        bool, typer.Option("--no-prefetch", help="Never take a job before there is room, however fast jobs end.")
    ] = False,
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left to do.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a .py file below here changes.")] = False,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            parser=duration,
            metavar="DURATION",
            help="How long a dead worker keeps its jobs from the others.",
            show_default="30s",
        ),
    ] = 30,
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            parser=duration,
            metavar="DURATION",
            help="How long a stop waits for jobs that run.",
            show_default="30s",
        ),
    ] = 30,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            parser=duration,
            metavar="DURATION",
            help="How long a handler may take to end once it is told to.",
            show_default="5s",
        ),
    ] = 5,
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="BACKSTAY_SERVER",
            help="Speak HTTP with this server instead of the engine; its token is in BACKSTAY_TOKEN.",
        ),
    ] = "",
    health_file: Annotated[
        str, typer.Option("--health-file", metavar="PATH", help="Written every 2 s while all is well.")
    ] = "",
    health_port: Annotated[
        int,
        typer.Option(
            "--health-port", metavar="PORT", min=0, max=65535, help="Answers HTTP on 127.0.0.1: 200 well, 503 not."
        ),
    ] = 0,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="What it is called; made up unless given.")] = "",
    keep: Keep = KEEP,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning, error.")
    ] = "info",
) -> None:
    """Run the jobs that a program defines.

    MODULE:APP is imported from here; its Backstay knows the engine and every
    job defined with @stay.job. Async handlers share one event loop, plain
    functions get threads, pool="process" gets processes. Any number of
    workers may run at once, on any number of machines.

    The first SIGTERM or Ctrl-C [bold]drains[/bold]: nothing new is taken, running jobs
    may end, what has not ended after [bold]--drain[/bold] is given back without using
    up an attempt. The second stops at once. A worker that is killed loses
    nothing: its jobs start elsewhere when their lease has run out.

    [bold]Examples[/bold]

      backstay worker shop.jobs:stay

      backstay worker shop.jobs:stay --queues mail,default --concurrency 100

      backstay worker shop.jobs:stay --queues mail=3,default=1 --processes 4

      backstay worker shop.jobs:stay --labels gpu --concurrency 1

      backstay worker shop.jobs:stay --burst

      backstay worker shop.jobs:stay --reload

      backstay worker --allow-commands --labels linux,docker --concurrency 4

      BACKSTAY_TOKEN=bst_… backstay worker --server https://ci.example.org --allow-commands
    """
    if log_level not in LEVELS:
        raise typer.BadParameter(f"{log_level!r} is none of {', '.join(LEVELS)}", param_hint="--log-level")
    if not target and not allow_commands:
        raise typer.BadParameter("name a program, as in: backstay worker shop.jobs:stay; or pass --allow-commands")
    options: dict[str, Any] = {
        "queues": parse_queues(queues),
        "labels": split_names(labels),
        "concurrency": concurrency,
        "lease": lease,
        "drain": drain,
        "grace": grace,
        "prefetch": not no_prefetch,
        "name": name,
        "keep": keep,
        "allow_commands": allow_commands,
        "pass_env": split_names(pass_env),
        "secrets": split_names(secrets),
        "directory": directory,
        "artifacts": artifacts,
    }
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if server:
        if processes > 1 or reload or burst or health_file or health_port:
            raise typer.BadParameter("--server goes without --processes, --reload, --burst and --health-…")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_work_remotely(server, target, options))
        return
    if processes > 1 or reload:

        def command(place: int) -> list[str]:
            own = [sys.executable, "-m", "backstay", "worker", *([target] if target else [])]
            own += ["--queues", queues, "--labels", labels]
            own += ["--concurrency", str(concurrency), "--lease", str(lease), "--drain", str(drain)]
            own += ["--grace", str(grace), "--keep", str(keep), "--log-level", log_level]
            own += ["--burst"] if burst else []
            own += ["--no-prefetch"] if no_prefetch else []
            if allow_commands:
                own += ["--allow-commands", "--pass-env", pass_env, "--secrets", secrets, "--directory", directory]
                own += ["--artifacts", artifacts] if artifacts else []
            own += ["--name", f"{name}-{place}" if processes > 1 else name] if name else []
            own += ["--health-file", f"{health_file}.{place}" if processes > 1 else health_file] if health_file else []
            return own + (["--health-port", str(health_port + place)] if health_port else [])

        if not target:  # by environment: a URL may have a password, and others see our arguments
            given = connection(context)
            os.environ["BACKSTAY_URL"] = given.url
            if given.namespace is not None:
                os.environ["BACKSTAY_NAMESPACE"] = given.namespace
            if given.shards is not None:
                os.environ["BACKSTAY_SHARDS"] = str(given.shards)
        supervisor = _supervise(command, processes, burst=burst, reload=reload)
        raise typer.Exit(supervisor)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        stay = find_app(target) if target else connection(context).create()
        runner.run(_work(stay, options, burst=burst, health_file=health_file, health_port=health_port))


def _supervise(command: Any, processes: int, *, burst: bool, reload: bool) -> int:
    async def supervise() -> int:
        return await Supervisor(command, processes, burst=burst, reload=reload).run()

    return asyncio.run(supervise())


async def _work(stay: Backstay, options: dict[str, Any], *, burst: bool, health_file: str, health_port: int) -> None:
    log = logging.getLogger("backstay")
    made = stay.worker(**options)
    health = Health(made, stay.telemetry, file=health_file, port=health_port)
    forget = hear_the_end(made.stop)
    try:
        await health.open()
        async with burst_bar(stay, made, wanted=burst):
            log.info("worker %s: queues %s, %d at once", made.id, ", ".join(made.queues), options["concurrency"])
            await made.run(burst=burst)
    finally:
        forget()
        await health.close()
        await stay.close()
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(made.counts.items()))
    log.info("worker %s: %s", made.id, counts or "nothing was done")


async def _work_remotely(url: str, target: str, options: dict[str, Any]) -> None:
    """Over HTTP: the engine is the server's business."""
    from backstay.server.remote_worker.client import Answered, Client
    from backstay.server.remote_worker.worker import RemoteWorker
    from backstay.workflow.command.environment import surroundings

    log = logging.getLogger("backstay")
    commands = None
    if options["allow_commands"]:
        commands = surroundings(options["pass_env"], options["secrets"], options["directory"], options["grace"])
    stay = find_app(target) if target else None
    made = RemoteWorker(
        Client(url, os.environ.get("BACKSTAY_TOKEN", "")),
        surroundings=commands,
        core=stay._core if stay is not None else None,  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the house's own
        queues=list(options["queues"]),
        labels=options["labels"],
        concurrency=options["concurrency"],
        lease=options["lease"],
        drain=options["drain"],
        grace=options["grace"],
        name=options["name"],
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, made.stop)
    log.info("worker %s at %s: queues %s, %d at once", made.id, url, ", ".join(made.queues), options["concurrency"])
    try:
        await made.run()
    except Answered as error:
        raise ConfigError(f"the server refuses this worker: {error}") from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if stay is not None:
            await stay.close()
    log.info("worker %s: %d done", made.id, made.done)


def parse_queues(text: str) -> list[str] | dict[str, int]:
    """`a,b` as names, `a=3,b=1` as weights; both at once means weight 1 for those without."""
    names = split_names(text)
    if not any("=" in name for name in names):
        return names
    weights: dict[str, int] = {}
    for part in names:
        name, equals, weight = part.rpartition("=") if "=" in part else (part, "=", "1")
        if not equals or not weight.isdecimal() or not name:
            raise ConfigError(f"{part!r} is not a queue and its weight; write --queues mail=3,default=1")
        weights[name] = int(weight)
    return weights


def split_names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]
