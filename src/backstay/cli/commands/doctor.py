"""`backstay doctor`: check that an engine is fit for locks."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import PIPE_WIDTH, printable, say_json
from backstay.doctor.examine import examine
from backstay.doctor.finding import OK, PROBLEM, WARNING, Level, Report

#: The sign and colour of each level.
SIGNS: dict[Level, tuple[str, str]] = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), PROBLEM: ("problem", "red")}


def doctor(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The engine; the default is --url.", show_default=False)
    ] = "",
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when there are warnings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")] = False,
) -> None:
    """Check whether an engine is fit for locks: reachable, durable, with a correct clock and the needed rights.

    The check changes nothing and creates nothing. Exit code 0: fit, perhaps with
    warnings; 1: warnings, with [bold]--strict[/bold]; 2: problems that would break locks.

    [bold]Examples[/bold]

      backstay doctor

      backstay doctor redis://127.0.0.1:6379/0

      BACKSTAY_URL=redis://127.0.0.1:6379/0 backstay doctor --strict --json
    """
    asked = connection(context)
    report = examine(url or asked.url, namespace=asked.namespace)
    if as_json:
        say_json(as_dict(report))
    else:
        show(report)
    raise typer.Exit(exit_code(report, strict=strict))


def exit_code(report: Report, *, strict: bool) -> int:
    if report.verdict == PROBLEM:
        return exit_codes.PROBLEMS
    return exit_codes.WARNINGS if strict and report.verdict == WARNING else exit_codes.OK


def as_dict(report: Report) -> dict[str, Any]:
    """Return the report as the object that `--json` prints."""
    return {
        "engine": report.engine,
        "verdict": report.verdict,
        "findings": [{"level": f.level, "topic": f.topic, "what": f.what, "advice": f.advice} for f in report.findings],
    }


def show(report: Report) -> None:
    """Print each finding with its advice, and a summary."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(Text(printable(report.engine), style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in report.findings:
        sign, colour = SIGNS[finding.level]
        table.add_row(Text(sign, style=colour), Text(finding.topic), Text(printable(finding.what)))
        if finding.advice:
            table.add_row("", "", Text(f"→ {printable(finding.advice)}", style="dim"))
    console.print(table)
    console.print(Text(_summarize(report)))


def _summarize(report: Report) -> str:
    levels = [finding.level for finding in report.findings]
    problems, warnings = levels.count(PROBLEM), levels.count(WARNING)
    if not problems and not warnings:
        return "Fit for locks."
    parts = [f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((problems, "problem"), (warnings, "warning")) if n]
    return f"{' and '.join(parts)}."
