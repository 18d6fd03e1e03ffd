"""`backstay n8n picture`: render a workflow's graph as SVG."""

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
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write.", show_default="standard output")
    ] = None,
    workspace: Where = HERE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Render the picture without writing a file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Render a workflow's graph as SVG. Nodes that belong to a lock or a limit have their own colour.

    [bold]Examples[/bold]

      backstay n8n picture --workflow-key excel > excel.svg

      backstay n8n picture --workflow-key excel_body --out docs/excel.svg
    """
    from backstay.n8n.patch.record import added_nodes
    from backstay.n8n.picture import picture as draw
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).read_view() as view:
        workflow = view.read(workflow_key)
    added = added_nodes(workflow)
    svg = draw(workflow, added=added).encode("utf-8", "replace").decode()  # a name may contain a lone surrogate
    if out is not None and not dry_run:
        try:
            out.write_text(svg, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error
    if as_json:
        say_json({"workflow_key": workflow_key, "added": added, **({"svg": svg} if out is None else {"out": str(out)})})
    elif out is None:
        say(svg.removesuffix("\n"))
