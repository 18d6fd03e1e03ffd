"""Offline health checks of a workspace: transports, primitives, registered scopes and ids. Read-only."""

from __future__ import annotations

from collections.abc import Iterator

from backstay.errors import N8nError, PatchRefused
from backstay.n8n.patch.patch import limits_of, locks_of
from backstay.n8n.patch.scope import read_scope
from backstay.n8n.primitives import KEYS, VERSION, identify
from backstay.n8n.sync.doctor import Check
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.install import transports
from backstay.n8n.workspace.workspace import Workspace


def examine(workspace: Workspace, env: str) -> list[Check]:
    """Return the checks, each finding once. Findings never raise."""
    found: dict[tuple[str, str], Check] = {}
    for check in (*_primitives(workspace), *_locks(workspace, env), *_ids(workspace, env)):
        found.setdefault((check.name, check.message), check)
    return [*found.values()] or [Check("workspace", "ok", f"nothing is missing for {env}")]


def _primitives(workspace: Workspace) -> Iterator[Check]:
    try:
        found = transports(workspace)
    except N8nError as error:
        yield Check("primitives", "error", str(error), "run create-lock --force-overwrite to rewrite them")
        return
    if len(set(found.values())) > 1:
        mixed = ", ".join(f"{key} {transport}" for key, transport in found.items())
        yield Check(
            "primitives", "error", f"the transports do not share locks: {mixed}", "run create-lock --force-overwrite"
        )
    for key in KEYS:
        identity = identify(workspace.read(key)) if key in found else None
        if identity is not None and identity.version < VERSION:
            what = f"installed version {identity.version}, current version {VERSION}"
            yield Check(f"workflow {key}", "warning", what, "run create-lock --force-overwrite")


def _locks(workspace: Workspace, env: str) -> Iterator[Check]:
    registered = workspace.scopes(env)
    for key in workspace.keys:
        name = f"workflow {key}"
        try:
            workflow = workspace.read(key)
            options = locks_of(workflow)
            limits_of(workflow)
            static = read_scope(options.scope).static if options else None
        except (N8nError, PatchRefused) as error:
            yield Check(name, "error", str(error), "backstay n8n validate shows details")
            continue
        # Over http clean-up asks the server, which knows the locks of an execution.
        if options is None or options.transport == "http":
            continue
        if static is None:
            yield Check(
                name,
                "warning",
                f"its scope {options.scope} differs between runs: clean-up after a failure finds only values that"
                " are registered",
                f"backstay n8n scopes add VALUE --env {env}, or rely on the TTL of {options.ttl_seconds} s",
            )
        elif static not in registered:
            yield Check(
                name,
                "warning",
                f"its scope {static!r} is not in {envs.SCOPES} of {env}: clean-up after a failure does not check it",
                f"backstay n8n scopes add {static} --env {env}",
            )


def _ids(workspace: Workspace, env: str) -> Iterator[Check]:
    for key in workspace.keys:
        try:
            workspace.hydrate(env, key)
        except N8nError as error:
            yield Check(f"workflow {key}", "error", str(error), "backstay n8n hydrate reports the same")
    for key in workspace.credentials(env):
        entry = workspace.entry(env, key, "credentials")
        if str(entry.get("id", "")).startswith(envs.LOCAL):
            command = (
                f"backstay n8n manage-credentials create --env {env} --key {key} --type {entry.get('type') or 'TYPE'}"
            )
            yield Check(
                f"credential {key}",
                "warning",
                "its id is a local one, not n8n's",
                f"{command} --env-vars FIELD=VARIABLE,…, or import one with this id",
            )
