"""Benchmark Backstay beside its peers in one run. `make bench`, or `python -m bench --help`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from bench.backlog import backlog
from bench.channels import channels
from bench.fairness import fairness
from bench.handover import handover
from bench.harness import Bench, Row, facts
from bench.http import http
from bench.idempotency import idempotency
from bench.jobs import jobs, jobs_sql
from bench.limits import limits
from bench.pairs import tasks, threads
from bench.postgres import postgres
from bench.renewal import renewal
from bench.results import results
from bench.sqlite import sqlite
from bench.startup import startup
from bench.workflows import workflows
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from backstay.testing.servers import RedisServer

MEASURES: dict[str, Callable[[Bench], list[Row]]] = {
    "async": tasks,
    "blocking": threads,
    "handover": handover,
    "fairness": fairness,
    "renewal": renewal,
    "sqlite": sqlite,
    "postgres": postgres,
    "channels": channels,
    "limits": limits,
    "idempotency": idempotency,
    "jobs": jobs,
    "jobs-sql": jobs_sql,
    "results": results,
    "backlog": backlog,
    "workflows": workflows,
    "http": http,
    "import": startup,
}
#: Choices of `--only` that stand for several measures.
GROUPS = {"pairs": ("async", "blocking")}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    choices = [*MEASURES, *GROUPS]
    names = ", ".join([*MEASURES, *(f"{group} ({' and '.join(members)})" for group, members in GROUPS.items())])
    parser.add_argument("--only", nargs="+", choices=choices, metavar="NAME", help=f"run only these: {names}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; figures are rough")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args()


def table(rows: list[Row]) -> Table:
    shown = Table(caption="Ratios come from interleaved rounds of this run; absolute figures depend on the machine.")
    for heading in ("measure", "Backstay", "peer"):
        shown.add_column(heading, overflow="fold")
    for heading in ("ratio", "target", "verdict"):
        shown.add_column(heading, justify="right")
    verdicts = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}×"
        shown.add_row(row.measure, row.backstay, row.peer, ratio, row.target, verdicts[row.met])
    return shown


def peers(rows: list[Row]) -> Table | None:
    """Return a table of all peers, for measures with several. Each of them ran once, to find the best; None if no
    measure has several.
    """
    several = [row for row in rows if len(row.detail.get("peers", ())) > 1]
    if not several:
        return None
    shown = Table(caption="Each peer ran once, to find the best; the comparison above comes from separate rounds.")
    shown.add_column("measure", overflow="fold")
    shown.add_column("peers", overflow="fold")
    for row in several:
        shown.add_row(row.measure, ", ".join(f"{name} {found}" for name, found in row.detail["peers"].items()))
    return shown


def main() -> int:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 150)
    only = {name for choice in options.only or MEASURES for name in GROUPS.get(choice, (choice,))}
    chosen = [name for name in MEASURES if name in only]
    rows: list[Row] = []
    crashed: list[str] = []
    columns = (
        SpinnerColumn(),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with (
        RedisServer() as server,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        machine = facts(server)
        task = progress.add_task("", total=len(chosen))
        for name in chosen:
            try:
                rows += MEASURES[name](
                    Bench(server, options.quick, lambda text: progress.update(task, description=text))
                )
            except Exception:  # noqa: BLE001 - the other measures still run
                crashed.append(name)
                console.print(f"[red]{name} crashed[/]", traceback.format_exc(), highlight=False)
            progress.advance(task)
    console.print(table(rows))
    if (each := peers(rows)) is not None:
        console.print(each)
    console.print(", ".join(f"{what} {value}" for what, value in machine.items()), highlight=False)
    if options.json:
        report = {"machine": machine, "quick": options.quick, "crashed": crashed, "rows": [r.as_dict() for r in rows]}
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    missed = any(row.met is False for row in rows)
    return 1 if crashed or (options.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
