"""`backstay n8n scopes`: which locks clean-up looks for after a failed execution."""

from __future__ import annotations

from typing import Annotated

import typer

from backstay.cli import exit_codes
from backstay.cli.commands.n8n.options import HERE, AsJson, DryRun, Envs, NoDryRun, Where, finish, listed, refuse
from backstay.cli.output import printable, quoted, say, say_json, say_table
from backstay.errors import ConfigError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Scopes = Annotated[list[str], typer.Argument(metavar="SCOPE...", help="As it is at run time.", show_default=False)]


@app.callback()
def group() -> None:
    """The registry of lock scopes: clean-up after a failed execution looks through these."""


@app.command()
def add(
    scopes: Scopes,
    *,
    environments: Envs = None,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Register scopes in lockScopes of each environment. One that is there stays once.

    [bold]Examples[/bold]

      backstay n8n scopes add excel-budget excel-forecast

      backstay n8n scopes add tenant-7 --env prod
    """
    from backstay.n8n.workspace.workspace import Workspace

    if any(not scope.strip() for scope in scopes):
        raise ConfigError("a scope is empty")
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        added = {env: [scope for scope in scopes if view.add_scope(env, scope)] for env in view.chosen(environments)}
    lines = [f"{env}: {listed(map(quoted, new), 'all were there')}" for env, new in added.items()]
    finish(view, {"scopes": scopes, "added": added}, lines, as_json=as_json, dry_run=dry_run)


@app.command("rm")
def remove(
    scopes: Scopes,
    *,
    environments: Envs = None,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take scopes out of lockScopes. Exit code 1 when none of them was there.

    [bold]Examples[/bold]

      backstay n8n scopes rm excel-budget
    """
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        gone = {env: [one for one in scopes if view.remove_scope(env, one)] for env in view.chosen(environments)}
    if not any(gone.values()):
        told = f"{listed(map(quoted, scopes))}: registered nowhere"
        raise refuse(told, "NotRegistered", exit_codes.FAILED, as_json=as_json)
    lines = [f"{env}: {listed(map(quoted, old), 'none was there')}" for env, old in gone.items()]
    finish(view, {"scopes": scopes, "removed": gone}, lines, as_json=as_json, dry_run=dry_run)


@app.command("ls")
def list_scopes(
    *,
    environments: Envs = None,
    workspace: Where = HERE,
    _: NoDryRun = False,
    as_json: AsJson = False,
) -> None:
    """List the scopes that are registered, by environment.

    [bold]Examples[/bold]

      backstay n8n scopes ls

      backstay n8n scopes ls --env prod --json | jq -r '.scopes.prod[]'
    """
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).look() as view:
        found = {env: list(view.scopes(env)) for env in view.chosen(environments)}
    if as_json:
        say_json({"scopes": found})
    elif any(found.values()):
        say_table(("ENV", "SCOPE"), [(env, printable(scope)) for env, scopes in found.items() for scope in scopes])
    else:
        say("No scope is registered.")
