"""`backstay n8n push`, `pull`, `diff`, `status` and `doctor`: sync a workspace with the n8n of one environment."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.commands.n8n.options import HERE, AsJson, DryRun, Env, Keys, NoDryRun, Where, report_result, say_diff
from backstay.cli.output import printable, say, say_json, say_table
from backstay.errors import ConfigError

if TYPE_CHECKING:
    from backstay.n8n.sync.deployment import Deployment
    from backstay.n8n.sync.doctor import HealthCheck
    from backstay.n8n.sync.sync import SyncChange
    from backstay.n8n.workspace.workspace import Workspace

ForceSync = Annotated[
    bool, typer.Option("--force", help="Overwrite also when both sides changed: the other side's edits are lost.")
]
COLUMNS = ("WORKFLOW", "STATE", "ID", "WHY")


@contextmanager
def _deployment(workspace: Path, env: str, *, dry_run: bool) -> Generator[Deployment, None, None]:
    from backstay.n8n.sync.deployment import Deployment
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        deployment = Deployment.of(view, env)
        yield deployment
        deployment.save_state()


def push(
    *,
    env: Env,
    workflow_key: Keys = None,
    force: ForceSync = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Update n8n from the templates: resolve their placeholders, create missing workflows, update the existing ones.

    Nothing is written when a workflow was edited in n8n since the last push or pull: look at `diff`, then
    `pull` the edits or overwrite them with --force. On n8n 2.x, workflows that others call are published; no
    other workflow is activated.

    [bold]Examples[/bold]

      N8N_API_KEY=… backstay n8n push --env dev

      backstay n8n push --env prod --workflow-key nightly --dry-run
    """
    with _deployment(workspace, env, dry_run=dry_run) as deployment:
        changes = deployment.push(workflow_key, force=force, dry_run=dry_run)
    _report(deployment, changes, as_json=as_json, dry_run=dry_run)


def pull(
    *,
    env: Env,
    workflow_key: Keys = None,
    known: Annotated[
        str,
        typer.Option("--id", metavar="ID", help="The id of a workflow that has no template yet.", show_default=False),
    ] = "",
    force: ForceSync = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Update the templates from n8n. Values that did not change in n8n keep their placeholders.

    [bold]Examples[/bold]

      backstay n8n pull --env dev

      backstay n8n pull --env dev --workflow-key nightly --id Ab3dEfGh1jKlMn0p
    """
    from backstay.n8n.workspace.environments import check_key

    if known and len(workflow_key or ()) != 1:
        raise ConfigError("--id needs one --workflow-key: the name of its template")
    more = {check_key(key): known for key in (workflow_key or ())} if known else {}
    with _deployment(workspace, env, dry_run=dry_run) as deployment:
        if taken := [key for key in more if deployment.workspace.has(key)]:
            raise ConfigError(f"the template {taken[0]} already exists; pull it without --id")
        changes = deployment.pull(workflow_key, more=more, force=force, dry_run=dry_run)
    _report(deployment, changes, as_json=as_json, dry_run=dry_run)


def diff(
    *,
    env: Env,
    workflow_key: Keys = None,
    workspace: Where = HERE,
    _: NoDryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show what a push would change. Exit code 1 when n8n and the templates differ.

    [bold]Examples[/bold]

      backstay n8n diff --env prod
    """
    with _deployment(workspace, env, dry_run=True) as deployment:
        changes = deployment.diff(workflow_key)
    if as_json:
        from backstay.n8n.sync.deployment import as_fields

        say_json({"env": env, "workflows": [{**as_fields(change), "diff": change.diff} for change in changes]})
    else:
        for change in changes:
            say(printable(f"{change.key}: {change.detail}"))
            say_diff(change.diff)
        if not changes:
            say("n8n and the templates are equal.")
    raise typer.Exit(exit_codes.FAILED if changes else exit_codes.OK)


def status(
    *,
    env: Env,
    workflow_key: Keys = None,
    workspace: Where = HERE,
    _: NoDryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show for each workflow whether it changed in the workspace or in n8n since the last push or pull.

    [bold]Examples[/bold]

      backstay n8n status --env dev
    """
    with _deployment(workspace, env, dry_run=True) as deployment:
        changes = deployment.status(workflow_key)
    _report(deployment, changes, as_json=as_json, dry_run=False)


def doctor(
    *,
    env: Env,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when there are warnings.")] = False,
    workspace: Where = HERE,
    _: NoDryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check a workspace and its n8n: unregistered scopes, outdated primitives, missing ids, differences.

    Without an API key only the workspace is checked. Exit code 0: ok, perhaps with warnings; 1: warnings,
    with --strict; 2: errors.

    [bold]Examples[/bold]

      backstay n8n doctor --env prod --strict
    """
    from backstay.n8n.sync.doctor import HealthCheck
    from backstay.n8n.sync.doctor import examine as look
    from backstay.n8n.workspace import health
    from backstay.n8n.workspace.workspace import Workspace

    checks: list[HealthCheck] = []
    opened = Workspace.open(workspace)
    with opened.read_view() as view:
        view.select_environments([env])
        checks += [HealthCheck("workspace", "warning", note) for note in view.notes]
        checks += health.examine(view, env)
    try:
        if any(check.level == "error" for check in checks):
            checks.append(HealthCheck("n8n", "warning", "not checked: fix the errors above first"))
        else:
            with _deployment(workspace, env, dry_run=True) as deployment:
                checks += look(deployment.client, deployment.hydrate(), deployment.state)
    except ConfigError as error:
        checks.append(HealthCheck("n8n", "warning", f"not checked: {error}"))
    _show(checks, env, as_json=as_json)
    levels = {check.level for check in checks}
    if "error" in levels:
        raise typer.Exit(exit_codes.PROBLEMS)
    raise typer.Exit(exit_codes.WARNINGS if strict and "warning" in levels else exit_codes.OK)


def create_in_n8n(view: Workspace, environments: tuple[str, ...], keys: list[str]) -> dict[str, dict[str, str]]:
    """Create the primitives in the n8n of each environment, for `create-lock --mint`. Return their ids by environment
    and key. `view` must come from `Workspace.edit()`, because the ids are also written to the workspace.

    Every n8n is probed first: when one is unreachable or rejects its API key, none is changed.
    """
    from backstay.n8n.sync.deployment import Deployment

    deployments = [Deployment.of(view, env) for env in environments]
    for deployment in deployments:
        deployment.client.probe()
    made: dict[str, dict[str, str]] = {}
    for deployment in deployments:
        made[deployment.env] = {change.key: change.id for change in deployment.push(keys)}
        deployment.save_state()
    return made


def _report(deployment: Deployment, changes: list[SyncChange], *, as_json: bool, dry_run: bool) -> None:
    from backstay.n8n.sync.deployment import as_fields

    view = deployment.workspace
    facts: dict[str, Any] = {"env": deployment.env, "workflows": [as_fields(change) for change in changes]}
    if as_json:
        if dry_run:
            facts["workflows"] = [{**as_fields(change), "diff": change.diff} for change in changes]
        report_result(view, facts, (), as_json=True, dry_run=dry_run)
        return
    if dry_run:
        for change in changes:
            say_diff(change.diff)
    say_table(COLUMNS, [_row(change) for change in changes])
    differ = any(change.action != "same" for change in changes)
    report_result(view, facts, (), as_json=False, dry_run=dry_run, changes_n8n=differ)


def _row(change: SyncChange) -> tuple[str, ...]:
    return (printable(change.key), change.action, printable(change.id), printable(change.detail))


def _show(checks: list[HealthCheck], env: str, *, as_json: bool) -> None:
    if as_json:
        worst = next((level for level in ("error", "warning") if any(one.level == level for one in checks)), "ok")
        found = [{"level": one.level, "name": one.name, "what": one.message, "hint": one.hint} for one in checks]
        say_json({"env": env, "verdict": worst, "checks": found})
        return
    for one in checks:
        say(printable(f"{one.level:8} {one.name}: {one.message}"))
        if one.hint:
            say(printable(f"         → {one.hint}"))
