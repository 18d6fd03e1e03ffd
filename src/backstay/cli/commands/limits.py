"""`backstay limits`: show the usage of limits, hit one, reset one."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import ConnectionOptions, connection
from backstay.cli.durations import duration, span
from backstay.cli.output import printable, quote, say, say_json, say_table, warn
from backstay.errors import Decision, RateLimited
from backstay.limit.rates import ALGORITHMS
from backstay.limit.spec import ALGORITHM
from backstay.limit.view import Use

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name.", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="What is counted, such as user:7.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]

COLUMNS = ("LIMIT", "KEY", "ALGORITHM", "RATE", "TAKEN", "FREE IN")


@app.callback()
def group() -> None:
    """Show the usage of limits, hit one, reset one."""


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only this limit.", show_default=False)] = "",
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="Only this key.", show_default=False)] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Show the usage of each limit by key. On Redis this scans the whole key space.

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
        of = f" of {quote(name)}" if name else ""
        say(f"No usage{of}{f' by {quote(key)}' if key else ''}.")


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
    cost: Annotated[int, typer.Option("--cost", metavar="N", help="The cost of this hit.")] = 1,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="DURATION",
            parser=duration,
            help="How long to wait when the limit is reached.",
            show_default="no",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count a hit on a limit: exit code 0 when it is allowed, 75 when it is denied.

    Callers share a count when they use the same name, key, algorithm and windows.

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
    to: ConnectionOptions, name: str, key: str, rates: list[str], algorithm: str, cost: int, wait: float | None
) -> Decision:
    async with to.create() as stay:
        limit = stay.limit(name, *rates, algorithm=algorithm)
        try:
            return await (limit.hit(key, cost) if wait is None else limit.wait(key, cost, timeout=wait))
        except RateLimited as denial:
            return denial.decision


@app.command()
def reset(context: typer.Context, name: Name, key: Key, *, as_json: AsJson = False) -> None:
    """Delete a key's counts of one limit, for all rates and algorithms.

    [bold]Examples[/bold]

      backstay limits reset api user:7
    """
    with connection(context).existing() as stay:
        count = stay.limits.reset(name, key)
    if as_json:
        say_json({"name": name, "key": key, "records": count})
    elif count:
        say(f"Reset the usage of {quote(name)} by {quote(key)}.")
    else:
        say(f"{quote(key)} had no usage of {quote(name)}.")
