"""`backstay limits`: who has taken how much, take some, begin anew."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import Connection, connection
from backstay.cli.durations import duration, span
from backstay.cli.output import printable, quoted, say, say_json, say_table, warn
from backstay.errors import Decision, RateLimited
from backstay.limit.rates import ALGORITHMS
from backstay.limit.spec import ALGORITHM
from backstay.limit.view import Use

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name.", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Whose count.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, in the shape that the reference documents.")]

COLUMNS = ("LIMIT", "KEY", "ALGORITHM", "RATE", "TAKEN", "FREE IN")


@app.callback()
def group() -> None:
    """Look at limits, take some, begin anew."""


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only this limit.", show_default=False)] = "",
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="Only this key.", show_default=False)] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Show who has taken how much. On Redis this walks the whole key space.

    [bold]Examples[/bold]

      backstay limits show

      backstay limits show api user:7

      backstay limits show api --json | jq '.limits[].key'
    """
    with connection(context).existing() as stay:
        found = [use for use in stay.limits.list(name) if key in ("", use.key)]
    if as_json:
        say_json({"limits": [_plain(use) for use in found]})
    elif found:
        say_table(COLUMNS, (row for use in found for row in _rows(use)), right=("TAKEN", "FREE IN"))
    else:
        of = f" of {quoted(name)}" if name else ""
        say(f"Nothing is taken{of}{f' by {quoted(key)}' if key else ''}.")


def _plain(use: Use) -> dict[str, Any]:
    return dataclasses.asdict(use)


def _rows(use: Use) -> list[tuple[str, ...]]:
    who = (printable(use.name), printable(use.key), use.algorithm)
    if use.trouble:
        return [(*who, "–", printable(use.trouble), "–")]
    return [(*who, rate.rate, f"{rate.count} of {rate.limit}", span(rate.reset_after)) for rate in use.rates]


@app.command()
def hit(
    context: typer.Context,
    name: Name,
    key: Key,
    *,
    rate: Annotated[
        list[str],
        typer.Option("--rate", metavar="RATE", help="100/minute, 10/second, …; may be repeated.", show_default=False),
    ],
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="NAME", help=f"One of {', '.join(sorted(ALGORITHMS))}.")
    ] = ALGORITHM,
    cost: Annotated[int, typer.Option("--cost", metavar="N", help="How much to take.")] = 1,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="DURATION", parser=duration, help="Wait for the next free place.", show_default="no"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take some of a limit: exit code 0 when admitted, 75 when not.

    Callers share a count when they agree on the name, the key, the algorithm and the windows.

    [bold]Examples[/bold]

      backstay limits hit mail ada@example.org --rate 3/hour && ./send-mail

      backstay limits hit api user:7 --rate 10/second --rate 1000/hour --wait 5s
    """
    decision = asyncio.run(_hit(connection(context), name, key, rate, algorithm, cost, wait))
    if as_json:
        say_json(dataclasses.asdict(decision))
    elif decision.allowed:
        say(f"Admitted: {decision.count} of {decision.limit} in {span(decision.window)}.")
    if decision.allowed:
        return
    denial = RateLimited(decision, name=name)
    warn(str(denial))
    raise typer.Exit(exit_codes.ENGINE if decision.trouble else exit_codes.NOT_ACQUIRED)


async def _hit(
    to: Connection, name: str, key: str, rates: list[str], algorithm: str, cost: int, wait: float | None
) -> Decision:
    async with to.create() as stay:
        limit = stay.limit(name, *rates, algorithm=algorithm)
        try:
            return await (limit.hit(key, cost) if wait is None else limit.wait(key, cost, timeout=wait))
        except RateLimited as denial:
            return denial.decision


@app.command()
def reset(context: typer.Context, name: Name, key: Key, *, as_json: AsJson = False) -> None:
    """Forget what a key has taken of a limit, whatever its rates and algorithm.

    [bold]Examples[/bold]

      backstay limits reset api user:7
    """
    with connection(context).existing() as stay:
        count = stay.limits.reset(name, key)
    if as_json:
        say_json({"name": name, "key": key, "records": count})
    elif count:
        say(f"{quoted(key)} begins anew with {quoted(name)}.")
    else:
        say(f"{quoted(key)} had taken nothing of {quoted(name)}.")
