"""`backstay hub`: show messages of the hub as they arrive."""

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

#: The channels that `tail` shows when the user names none.
DEFAULT_CHANNELS = (SCHEDULED, CHAIN_COMPLETED, OWNERSHIP_LOST)


@app.callback()
def group() -> None:
    """Show the hints that wake workers and waiters."""


@app.command()
def tail(
    context: typer.Context,
    channels: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CHANNEL]...", help="The channels to show.", show_default=" ".join(DEFAULT_CHANNELS)),
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line; the reference documents its fields.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=0, help="End after N messages; 0: never.")
    ] = 0,
) -> None:
    """Show hints as they arrive, until Ctrl-C. Earlier hints are not stored.

    [bold]sched[/bold]: jobs became pending. [bold]chainc[/bold]: a chain completed.
    [bold]owls[/bold]: a worker lost a job. Any other name is your own channel.

    [bold]Examples[/bold]

      backstay hub tail

      backstay hub tail sched news

      backstay hub tail --json | jq -r .type
    """
    names = channels or list(DEFAULT_CHANNELS)
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
    """Print one message as a line. Return False when standard output is a pipe that its reader has closed."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        print(json.dumps(as_object(message, at)) if as_json else line(message, at), flush=True)
    except BrokenPipeError:
        # Python flushes standard output at exit, and that flush would report the broken pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def line(message: Message, at: str) -> str:
    if message.missed:
        return f"{at}  {printable(message.channel)}  (messages may have been missed)"
    if message.channel == SCHEDULED and (notice := read_scheduled(message.payload)):
        counted_by = "" if notice.hint_id == notice.type else f"  {notice.hint_id}"
        return f"{at}  {SCHEDULED}  {printable(notice.type)}{counted_by}"
    return f"{at}  {printable(message.channel)}  {printable(message.payload)}"


def as_object(message: Message, at: str) -> dict[str, object]:
    """Return the message as the object that `--json` prints."""
    shown: dict[str, object] = {
        "at": at,
        "channel": message.channel,
        "payload": message.payload,
        "missed": message.missed,
    }
    if message.channel == SCHEDULED and (notice := read_scheduled(message.payload)):
        shown |= {"type": notice.type, "hint_id": notice.hint_id}
    return shown
