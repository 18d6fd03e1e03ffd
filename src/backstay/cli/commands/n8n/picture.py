"""`backstay n8n picture`: a workflow's graph as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backstay.cli.commands.n8n.options import HERE, AsJson, Key, Where
from backstay.cli.output import say, say_json
from backstay.errors import ConfigError


def picture(
    *,
    workflow_key: Key,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there.", show_default="standard output")
    ] = None,
    workspace: Where = HERE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Draw it, and write no file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw a workflow's graph as SVG. The nodes that a lock or a limit has added have a colour of their own.

    [bold]Examples[/bold]

      backstay n8n picture --workflow-key excel > excel.svg

      backstay n8n picture --workflow-key excel_body --out docs/excel.svg
    """
    from backstay.n8n.patch.record import our_nodes
    from backstay.n8n.picture import picture as draw
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).look() as view:
        workflow = view.read(workflow_key)
    added = our_nodes(workflow)
    svg = draw(workflow, added=added).encode("utf-8", "replace").decode()  # a name may hold half a character
    if out is not None and not dry_run:
        try:
            out.write_text(svg, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error
    if as_json:
        say_json({"workflow_key": workflow_key, "added": added, **({"svg": svg} if out is None else {"out": str(out)})})
    elif out is None:
        say(svg.removesuffix("\n"))
