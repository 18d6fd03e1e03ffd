"""What the commands of `backstay n8n` share: options, and how they tell what they did."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli.output import asks_for_json, printable, say, say_json, say_refusal, warn

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
        help="Print JSON, in the shape that the reference documents; refusals, too.",
        callback=asks_for_json,
        is_eager=True,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would change, as a diff.")]
NoDryRun = Annotated[bool, typer.Option("--dry-run", help="Accepted like everywhere; this command changes nothing.")]
Key = Annotated[
    str, typer.Option("--workflow-key", metavar="KEY", help="Its template is KEY.template.json.", show_default=False)
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--workflow-key", metavar="KEY", help="Only this one; may be repeated.", show_default="all"),
]
Env = Annotated[str, typer.Option("--env", metavar="ENV", help="The environment.", show_default=False)]
Envs = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="ENV", help="Only this environment; may be repeated.", show_default="all"),
]
#: Where a command works unless it is told otherwise.
HERE = Path()


def finish(
    view: Workspace,
    facts: dict[str, Any],
    lines: Iterable[str],
    *,
    as_json: bool,
    dry_run: bool,
    warnings: Iterable[str] = (),
    elsewhere: bool = False,
) -> None:
    """Tell what was done, or what would be: facts for programs, lines for people, warnings for both.

    `elsewhere`: something changes in n8n, whatever happens to the files.
    """
    told = [*view.notes, *warnings]
    changes = view.changes
    if as_json:
        say_json(
            {
                **facts,
                "changes": [{"path": change.path, "action": change.action} for change in changes],
                "warnings": told,
                "dry_run": dry_run,
                **({"diff": view.files.diff()} if dry_run else {}),
            }
        )
    for one in told:
        warn(one)
    if as_json:
        return
    if dry_run:
        say_diff(view.files.diff())
        say("Nothing was changed: --dry-run." if changes or elsewhere else "Nothing would change.")
        return
    for line in lines:
        say(printable(line))


def refuse(message: str, kind: str, code: int, *, as_json: bool) -> typer.Exit:
    """Told, and to be raised: for what is no error of anybody's, and yet not done."""
    warn(message)
    if as_json:
        say_refusal(message, kind, code)
    return typer.Exit(code)


def say_diff(text: str) -> None:
    """Line by line, so that nothing in a file can move the cursor."""
    for line in text.splitlines():
        say(printable(line))


def listed(names: Iterable[str], nothing: str = "nothing") -> str:
    return ", ".join(names) or nothing
