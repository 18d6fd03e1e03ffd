"""`backstay workflows`: validate and store definitions, show them, start runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.connection import connection
from backstay.cli.output import fetch_or_exit, printable, say, say_json, say_table, warn
from backstay.cli.views import runs
from backstay.errors import BadDefinition, ConfigError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The workflow's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; the reference documents its fields.")]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="YAML or JSON; - is standard input.", show_default=False)
]
Version = Annotated[int, typer.Option("--version", metavar="N", min=0, help="0: the newest.")]


@app.callback()
def group() -> None:
    """Validate and store definitions, show them, start runs."""


def _document(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


@app.command()
def validate(files: Files, *, as_json: AsJson = False) -> None:
    """Validate workflow files and print every problem with its line and column. It stores nothing and needs no engine.

    [bold]Examples[/bold]

      backstay workflows validate ci.yml

      backstay workflows validate flows/*.yml --json | jq '.files[].problems'
    """
    from backstay.workflow.document.yaml import inspect

    checked: list[dict[str, Any]] = []
    for path in files:
        workflow, problems = inspect(_document(path), name=path.stem)
        checked.append(
            {
                "file": str(path),
                "name": workflow.name if workflow else None,
                "jobs": len(workflow.jobs) if workflow else None,
                "problems": [{"line": one.line, "column": one.column, "message": one.message} for one in problems],
            }
        )
        if as_json:
            continue
        if workflow is not None:
            count = len(workflow.jobs)
            many = f"{count} job{'' if count == 1 else 's'}"
            say(f"{printable(str(path))}: {printable(workflow.name)}, {many}, no problem")
        for one in problems:
            say(printable(one.within(str(path))))
    if as_json:
        say_json({"files": checked})
    if any(one["problems"] for one in checked):
        raise typer.Exit(exit_codes.FAILED)


@app.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors.

    [bold]Examples[/bold]

      backstay workflows schema > workflow.schema.json
    """
    from backstay.workflow.document.schema import json_schema

    say_json(json_schema())


@app.command()
def put(context: typer.Context, files: Files, *, as_json: AsJson = False) -> None:
    """Store workflows. Storing the same document again keeps its version.

    [bold]Examples[/bold]

      backstay workflows put ci.yml
    """
    from backstay.workflow.document.yaml import read

    stored: list[dict[str, Any]] = []
    wrong = False
    documents = [(path, _document(path)) for path in files]
    with connection(context).existing() as stay:
        for path, raw in documents:
            try:
                workflow = read(raw, name=path.stem)
            except BadDefinition as error:
                wrong = True
                for one in error.problems:
                    warn(one.within(str(path)))
                continue
            info = stay.workflows.put(raw, name=path.stem)
            stored.append({"name": workflow.name, "version": info.version})
            if not as_json:
                say(f"{printable(info.name)} version {info.version}")
    if as_json:
        say_json({"workflows": stored})
    if wrong:
        raise typer.Exit(exit_codes.FAILED)


@app.command("ls")
def list_workflows(
    context: typer.Context,
    *,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="The most workflows to list.")
    ] = 100,
    after: Annotated[
        str, typer.Option("--after", metavar="NAME", help="The next page: pass the last name of this one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List stored workflows by name.

    [bold]Examples[/bold]

      backstay workflows ls
    """
    with connection(context).existing() as stay:
        listed = stay.workflows.list(after=after, limit=limit)
        now = stay.engine.now() / 1_000_000
    if as_json:
        say_json({"workflows": [runs.workflow_json(one) for one in listed]})
    elif listed:
        say_table(runs.WORKFLOW_COLUMNS, (runs.workflow_row(one, now) for one in listed), right=("version",))
        if len(listed) == limit:
            say(f"Next page: --after {printable(listed[-1].name)}")
    else:
        say("No workflow is stored; store one with: backstay workflows put FILE")


@app.command()
def show(context: typer.Context, name: Name, *, version: Version = 0, as_json: AsJson = False) -> None:
    """Show one workflow: its inputs, its jobs and their needs.

    [bold]Examples[/bold]

      backstay workflows show ci

      backstay workflows show ci --version 3 --json | jq .definition
    """
    with connection(context).existing() as stay:
        info = fetch_or_exit(lambda: stay.workflows.get(name, version))
    if as_json:
        say_json(runs.workflow_json(info))
    else:
        runs.workflow_page(info)


@app.command()
def start(
    context: typer.Context,
    name: Name,
    *,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help="An input; may be repeated.")
    ] = None,
    version: Version = 0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the run; the exit code reports its status.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run of a stored workflow.

    [bold]Examples[/bold]

      backstay workflows start ci -i version=1.2 --wait
    """
    given: dict[str, str] = {}
    for one in inputs or ():
        key, equals, value = one.partition("=")
        if not equals:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE", param_hint="--input")
        given[key] = value
    with connection(context).existing() as stay:
        run = fetch_or_exit(lambda: stay.workflows.start(name, given, version=version, trigger="cli"))
        if not as_json:
            say(run.id)
        status = run.wait() if wait else run.status()
    if as_json:
        say_json({"id": run.id, "workflow": run.workflow, "version": run.version, "status": status})
    elif wait:
        say(status)
    if wait and status != "success":
        raise typer.Exit(exit_codes.FAILED)
