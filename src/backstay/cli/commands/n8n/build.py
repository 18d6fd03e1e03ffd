"""`backstay n8n hydrate` and `validate`: build workflows for n8n and check them."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.commands.n8n.options import (
    HERE,
    AsJson,
    DryRun,
    Envs,
    Keys,
    NoDryRun,
    Where,
    join_names,
    report_refusal,
    report_result,
)
from backstay.cli.output import printable, say, say_json
from backstay.errors import ConfigError, N8nError

if TYPE_CHECKING:
    from backstay.n8n.model import N8nWorkflow
    from backstay.n8n.workspace.workspace import Workspace

SOURCES = ("built", "template")


def hydrate(
    *,
    environments: Envs = None,
    workflow_key: Keys = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Treat empty values and malformed placeholders as errors.")
    ] = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build workflows for n8n: resolve placeholders from the environment's settings and from files.

    Either all selected workflows are built or none. They are written to n8n-build/ENV/KEY.json.

    [bold]Examples[/bold]

      backstay n8n hydrate --env dev

      backstay n8n hydrate --env prod --workflow-key nightly --strict
    """
    from backstay.n8n.workspace.workspace import Workspace

    built: list[str] = []
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        for env in view.select_environments(environments):
            for key in _select_keys(view, workflow_key):
                view.write_built(env, key, view.hydrate(env, key, strict=strict))
                built.append(view.built_path(env, key))
    changed = {change.path for change in view.changes}
    lines = [f"{path}{'' if path in changed else ' (unchanged)'}" for path in built]
    report_result(view, {"built": built}, lines, as_json=as_json, dry_run=dry_run)


def validate(
    *,
    workflow_key: Keys = None,
    environments: Envs = None,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="built|template",
            help="What to check.",
            show_default="built with --env, else template",
        ),
    ] = "",
    workspace: Where = HERE,
    _: NoDryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check workflows for what n8n itself does not check: graph, locks, scopes, code, credentials.

    Exit code 0: no errors, perhaps warnings; 1: errors; 2: a file does not exist or is not a workflow.

    [bold]Examples[/bold]

      backstay n8n validate

      backstay n8n validate --workflow-key nightly --env dev --source built --json
    """
    from backstay.n8n.workspace.workspace import Workspace

    chosen = source or ("built" if environments else "template")
    if chosen not in SOURCES:
        raise ConfigError(f"--source {source!r} is neither built nor template")
    verdicts: list[dict[str, Any]] = []
    try:
        with Workspace.open(workspace).read_view() as view:
            for env in view.select_environments(environments):
                looked = _Source(view, env, is_built=chosen == "built")
                verdicts += [_verdict(looked, key) for key in _select_keys(view, workflow_key)]
                if chosen == "template" and not environments:
                    break  # a template is the same for all environments; ids and scopes come from the first one
    except N8nError as error:
        raise report_refusal(str(error), type(error).__name__, exit_codes.PROBLEMS, as_json=as_json) from error
    worst = "unreadable" if any(one["verdict"] == "unreadable" for one in verdicts) else "valid"
    if worst == "valid" and any(one["verdict"] == "invalid" for one in verdicts):
        worst = "invalid"
    if as_json:
        say_json({"verdict": worst, "source": chosen, "workflows": verdicts})
    else:
        _show(verdicts)
    raise typer.Exit({"valid": exit_codes.OK, "invalid": exit_codes.FAILED, "unreadable": exit_codes.PROBLEMS}[worst])


def _select_keys(view: Workspace, keys: list[str] | None) -> list[str]:
    if keys:
        return list(dict.fromkeys(keys))
    if not view.keys:
        raise ConfigError("the workspace has no workflow: put one into n8n-workflows-template/KEY.template.json")
    return list(view.keys)


class _Source:
    """Reads the workflows of one environment, from built files or from templates, each file once."""

    def __init__(self, view: Workspace, env: str, *, is_built: bool) -> None:
        self.view, self.env, self.is_built = view, env, is_built
        self._found: dict[str, N8nWorkflow | N8nError] = {}

    def path(self, key: str) -> str:
        return self.view.built_path(self.env, key) if self.is_built else self.view.template_path(key)

    def read(self, key: str) -> N8nWorkflow:
        """Return the workflow; raise N8nError when it cannot be read."""
        if key not in self._found:
            try:
                self._found[key] = self.view.read_built(self.env, key) if self.is_built else self.view.read(key)
            except N8nError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, N8nError):
            raise found
        return found

    @cached_property
    def readable(self) -> dict[str, N8nWorkflow]:
        """All workflows of the workspace that can be read, by key. If a built file cannot be read, the workflow is read
        from its template. If that fails as well, the workflow is left out.
        """
        found: dict[str, N8nWorkflow] = {}
        for key in self.view.keys:
            for read in (self.read, self.view.read) if self.is_built else (self.read,):
                with contextlib.suppress(N8nError):
                    found[key] = read(key)
                    break
        return found


def _verdict(source: _Source, key: str) -> dict[str, Any]:
    from backstay.n8n.rules.validate import WorkspaceContext
    from backstay.n8n.rules.validate import validate as check

    view, env = source.view, source.env
    head = {"workflow_key": key, "env": env, "path": source.path(key)}
    try:
        workflow = source.read(key)
    except N8nError as error:
        return {**head, "verdict": "unreadable", "error": str(error), "errors": 1, "warnings": 0, "findings": []}
    context = WorkspaceContext(
        scopes=view.scopes(env),
        workflow_ids=view.workflow_ids(env),
        built=source.is_built,
        others={other: read for other, read in source.readable.items() if other != key},
    )
    findings = check(workflow, context)
    errors = sum(finding.level == "error" for finding in findings)
    return {
        **head,
        "verdict": "invalid" if errors else "valid",
        "error": None,
        "errors": errors,
        "warnings": len(findings) - errors,
        "findings": [asdict(finding) for finding in findings],
    }


def _show(verdicts: list[dict[str, Any]]) -> None:
    for one in verdicts:
        if one["verdict"] == "unreadable":
            message, path = one["error"], one["path"]
            say(printable(message if path in message else f"{path}: {message}"))
            continue
        counts = [f"{n} {kind}{'s' if n > 1 else ''}" for kind in ("error", "warning") if (n := one[f"{kind}s"])]
        say(f"{one['path']}: {one['verdict']}{f' ({join_names(counts)})' if counts else ''}")
        for finding in one["findings"]:
            at = f" {finding['node']!r}" if finding["node"] else ""
            say(printable(f"  {finding['level']} {finding['rule']}{at}: {finding['message']}"))
            if finding["hint"]:
                say(printable(f"    → {finding['hint']}"))
