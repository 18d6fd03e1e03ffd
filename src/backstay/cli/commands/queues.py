"""`backstay queues`: list, pause, resume and drain queues."""

from __future__ import annotations

from typing import Annotated

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.durations import FOREVER, duration_or_forever
from backstay.cli.output import quote, say, say_json, say_table, warn
from backstay.cli.views import jobs
from backstay.errors import ResultTimeout

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]


@app.callback()
def group() -> None:
    """List, pause, resume and drain queues."""


@app.command("ls")
def list_queues(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List queues with the number of jobs in each state.

    [bold]Examples[/bold]

      backstay queues ls

      backstay queues ls --json | jq '.queues[] | select(.pending > 1000)'
    """
    with connection(context).existing() as stay:
        found = stay.queues.list()
    if as_json:
        say_json({"queues": [jobs.queue_json(queue) for queue in found]})
    elif found:
        rows = (jobs.queue_row(queue) for queue in found)
        say_table(jobs.QUEUE_COLUMNS, rows, right=jobs.QUEUE_RIGHT)
    else:
        say("There is no queue yet.")


@app.command()
def pause(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Pause a queue: workers claim none of its jobs; jobs that are running finish.

    [bold]Examples[/bold]

      backstay queues pause mail
    """
    _set(context, name, paused=True, as_json=as_json)


@app.command()
def resume(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Resume a paused queue.

    [bold]Examples[/bold]

      backstay queues resume mail
    """
    _set(context, name, paused=False, as_json=as_json)


def _set(context: typer.Context, name: str, *, paused: bool, as_json: bool) -> None:
    with connection(context).existing() as stay:
        if paused:
            stay.queues.pause(name)
        else:
            stay.queues.resume(name)
        queue = stay.queues.get(name)
    if as_json:
        say_json(jobs.queue_json(queue))
    else:
        state = f"paused; {queue.running} jobs still run" if queue.paused else f"open; {queue.pending} jobs are pending"
        say(f"{quote(name)} is {state}.")


@app.command()
def drain(
    context: typer.Context,
    name: Name,
    *,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=duration_or_forever,
            metavar="DURATION|forever",
            help="How long to wait.",
            show_default="forever",
        ),
    ] = FOREVER,
    as_json: AsJson = False,
) -> None:
    """Pause a queue and wait until none of its jobs is running. The queue stays paused.

    [bold]Examples[/bold]

      backstay queues drain mail --timeout 5m && ./deploy.sh && backstay queues resume mail
    """
    with connection(context).existing() as stay:
        try:
            queue = stay.queues.drain(name, None if timeout == FOREVER else timeout)
        except ResultTimeout as error:
            warn(str(error))
            raise typer.Exit(exit_codes.FAILED) from error
    if as_json:
        say_json(jobs.queue_json(queue))
    else:
        say(f"{quote(name)} is paused and none of its jobs runs; {queue.pending} are pending.")
