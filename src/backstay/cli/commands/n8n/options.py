"""Options that the `backstay n8n` commands share, and how they report results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli.output import printable, record_json_option, say, say_json, say_refusal, warn

if TYPE_CHECKING:
    from backstay.n8n.workspace.workspace import Workspace

Where = Annotated[
    Path,
    typer.Option(
        "--workspace",
        metavar="DIR",
        envvar="BACKSTAY_N8N_WORKSPACE",
        help="The folder with n8n-config and n8n-workflows-template.",
        show_default="this folder",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON in the documented format, also for refusals.",
        callback=record_json_option,
        is_eager=True,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show the changes as a diff.")]
NoDryRun = Annotated[bool, typer.Option("--dry-run", help="Accepted for uniformity; this command changes nothing.")]
Key = Annotated[
    str,
    typer.Option(
        "--workflow-key", metavar="KEY", help="The workflow; its template is KEY.template.json.", show_default=False
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--workflow-key", metavar="KEY", help="Only this workflow; may be repeated.", show_default="all"),
]
Env = Annotated[str, typer.Option("--env", metavar="ENV", help="The environment.", show_default=False)]
Envs = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="ENV", help="Only this environment; may be repeated.", show_default="all"),
]
#: The default workspace: the current folder.
HERE = Path()


def report_result(
    view: Workspace,
    facts: dict[str, Any],
    lines: Iterable[str],
    *,
    as_json: bool,
    dry_run: bool,
    warnings: Iterable[str] = (),
    changes_n8n: bool = False,
) -> None:
    """Print the result of a command: with `as_json` an object with the `facts`; otherwise, for a dry run, the diff of
    the files; otherwise the `lines`. Warnings always go to standard error.

    `changes_n8n`: the command changes workflows in n8n. A dry run then does not print "Nothing would change", even if
    no file differs.
    """
    messages = [*view.notes, *warnings]
    changes = view.changes
    if as_json:
        say_json(
            {
                **facts,
                "changes": [{"path": change.path, "action": change.action} for change in changes],
                "warnings": messages,
                "dry_run": dry_run,
                **({"diff": view.files.diff()} if dry_run else {}),
            }
        )
    for one in messages:
        warn(one)
    if as_json:
        return
    if dry_run:
        say_diff(view.files.diff())
        say("Nothing was changed: --dry-run." if changes or changes_n8n else "Nothing would change.")
        return
    for line in lines:
        say(printable(line))


def report_refusal(message: str, kind: str, code: int, *, as_json: bool) -> typer.Exit:
    """Print why the command did nothing, and return the `typer.Exit` that the caller raises."""
    warn(message)
    if as_json:
        say_refusal(message, kind, code)
    return typer.Exit(code)


def say_diff(text: str) -> None:
    """Print a diff. Control characters are escaped, because a file's content could control the terminal."""
    for line in text.splitlines():
        say(printable(line))


def join_names(names: Iterable[str], nothing: str = "nothing") -> str:
    return ", ".join(names) or nothing
