"""`backstay hub`: listen in on hints as they pass."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

import typer

from backstay.channel.listeners import Message
from backstay.cli.connection import connection
from backstay.cli.output import printable, warn
from backstay.hub.protocol import CHAIN_COMPLETED, OWNERSHIP_LOST, SCHEDULED, read_scheduled

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

#: What is shown when nothing else was asked for.
USUAL = (SCHEDULED, CHAIN_COMPLETED, OWNERSHIP_LOST)


@app.callback()
def group() -> None:
    """Listen in on the hints that wake workers and waiters."""


@app.command()
def tail(
    context: typer.Context,
    channels: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CHANNEL]...", help="Which channels.", show_default=" ".join(USUAL)),
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line, in the shape that the reference documents.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=0, help="End after N messages; 0: never.")
    ] = 0,
) -> None:
    """Show hints as they pass, until Ctrl-C. What passed before is gone.

    [bold]sched[/bold]: jobs became pending. [bold]chainc[/bold]: a chain completed.
    [bold]owls[/bold]: somebody lost a job. Any other name is a channel of yours.

    [bold]Examples[/bold]

      backstay hub tail

      backstay hub tail sched news

      backstay hub tail --json | jq -r .type
    """
    names = channels or list(USUAL)
    with (
        suppress(KeyboardInterrupt),
        connection(context).existing() as stay,
        stay.hub.listen(names[0], *names[1:]) as messages,
    ):
        warn(f"listening on {', '.join(names)}")
        for nth, message in enumerate(messages, start=1):
            if not _show(message, as_json=as_json) or nth == count:
                return


def _show(message: Message, *, as_json: bool) -> bool:
    """False when nobody reads any more."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        print(json.dumps(as_object(message, at)) if as_json else line(message, at), flush=True)
    except BrokenPipeError:
        # Python flushes standard output once more at its end; there it would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def line(message: Message, at: str) -> str:
    if message.missed:
        return f"{at}  {printable(message.channel)}  (something may have been missed)"
    if message.channel == SCHEDULED and (notice := read_scheduled(message.payload)):
        return f"{at}  {SCHEDULED}  {printable(notice.type)}  {notice.hint_id}"
    return f"{at}  {printable(message.channel)}  {printable(message.payload)}"


def as_object(message: Message, at: str) -> dict[str, object]:
    """The documented shape."""
    shown: dict[str, object] = {
        "at": at,
        "channel": message.channel,
        "payload": message.payload,
        "missed": message.missed,
    }
    if message.channel == SCHEDULED and (notice := read_scheduled(message.payload)):
        shown |= {"type": notice.type, "hint_id": notice.hint_id}
    return shown
