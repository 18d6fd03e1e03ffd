"""`backstay n8n scopes`: list, add and remove the lock scopes that clean-up checks after a failed execution."""

from __future__ import annotations

from typing import Annotated

import typer

from backstay.cli import exit_codes
from backstay.cli.commands.n8n.options import (
    HERE,
    AsJson,
    DryRun,
    Envs,
    NoDryRun,
    Where,
    join_names,
    report_refusal,
    report_result,
)
from backstay.cli.output import printable, quote, say, say_json, say_table
from backstay.errors import ConfigError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Scopes = Annotated[
    list[str], typer.Argument(metavar="SCOPE...", help="The scope's value at run time.", show_default=False)
]


@app.callback()
def group() -> None:
    """Manage the list of lock scopes in which clean-up looks for the locks of a failed execution."""


@app.command()
def add(
    scopes: Scopes,
    *,
    environments: Envs = None,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Register scopes in lockScopes of each environment. Idempotent.

    [bold]Examples[/bold]

      backstay n8n scopes add excel-budget excel-forecast

      backstay n8n scopes add tenant-7 --env prod
    """
    from backstay.n8n.workspace.workspace import Workspace

    if any(not scope.strip() for scope in scopes):
        raise ConfigError("a scope must not be empty")
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        added = {
            env: [scope for scope in scopes if view.add_scope(env, scope)]
            for env in view.select_environments(environments)
        }
    lines = [f"{env}: {join_names(map(quote, new), 'all were registered')}" for env, new in added.items()]
    report_result(view, {"scopes": scopes, "added": added}, lines, as_json=as_json, dry_run=dry_run)


@app.command("rm")
def remove(
    scopes: Scopes,
    *,
    environments: Envs = None,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove scopes from lockScopes. Exit code 1 when none of them was registered.

    [bold]Examples[/bold]

      backstay n8n scopes rm excel-budget
    """
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        gone = {
            env: [one for one in scopes if view.remove_scope(env, one)]
            for env in view.select_environments(environments)
        }
    if not any(gone.values()):
        message = f"{join_names(map(quote, scopes))}: not registered in any environment"
        raise report_refusal(message, "NotRegistered", exit_codes.FAILED, as_json=as_json)
    lines = [f"{env}: {join_names(map(quote, old), 'none was registered')}" for env, old in gone.items()]
    report_result(view, {"scopes": scopes, "removed": gone}, lines, as_json=as_json, dry_run=dry_run)


@app.command("ls")
def list_scopes(
    *,
    environments: Envs = None,
    workspace: Where = HERE,
    _: NoDryRun = False,
    as_json: AsJson = False,
) -> None:
    """List the registered scopes by environment.

    [bold]Examples[/bold]

      backstay n8n scopes ls

      backstay n8n scopes ls --env prod --json | jq -r '.scopes.prod[]'
    """
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).read_view() as view:
        found = {env: list(view.scopes(env)) for env in view.select_environments(environments)}
    if as_json:
        say_json({"scopes": found})
    elif any(found.values()):
        say_table(("ENV", "SCOPE"), [(env, printable(scope)) for env, scopes in found.items() for scope in scopes])
    else:
        say("No scope is registered.")
