"""Health checks of a workspace's files, without a connection to n8n: all primitives use one transport (Redis or HTTP)
and are current, lock scopes are registered in the settings, placeholders can be resolved. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.errors import N8nError, PatchRefused
from backstay.n8n.patch.patch import read_limit_options, read_lock_options
from backstay.n8n.patch.scope import read_scope
from backstay.n8n.primitives import KEYS, VERSION, identify
from backstay.n8n.sync.doctor import HealthCheck
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.install import transports
from backstay.n8n.workspace.workspace import Workspace


def examine(workspace: Workspace, env: str) -> list[HealthCheck]:
    """Return the problems of the workspace, each once, or one check with level `ok`. A problem never raises."""
    found: dict[tuple[str, str], HealthCheck] = {}
    for check in (*_primitives(workspace), *_locks(workspace, env), *_ids(workspace, env)):
        found.setdefault((check.name, check.message), check)
    return [*found.values()] or [HealthCheck("workspace", "ok", f"nothing is missing for {env}")]


def _primitives(workspace: Workspace) -> Iterator[HealthCheck]:
    try:
        found = transports(workspace)
    except N8nError as error:
        yield HealthCheck("primitives", "error", str(error), "run create-lock --force-overwrite to rewrite them")
        return
    if len(set(found.values())) > 1:
        mixed = ", ".join(f"{key} {transport}" for key, transport in found.items())
        yield HealthCheck(
            "primitives", "error", f"the transports do not share locks: {mixed}", "run create-lock --force-overwrite"
        )
    for key in KEYS:
        identity = identify(workspace.read(key)) if key in found else None
        if identity is not None and identity.version < VERSION:
            what = f"installed version {identity.version}, current version {VERSION}"
            yield HealthCheck(f"workflow {key}", "warning", what, "run create-lock --force-overwrite")


def _locks(workspace: Workspace, env: str) -> Iterator[HealthCheck]:
    registered = workspace.scopes(env)
    for key in workspace.keys:
        name = f"workflow {key}"
        try:
            workflow = workspace.read(key)
            options = read_lock_options(workflow)
            read_limit_options(workflow)
            static = read_scope(options.scope).static if options else None
        except (N8nError, PatchRefused) as error:
            yield HealthCheck(name, "error", str(error), "backstay n8n validate shows details")
            continue
        # Over http no scope needs registration: the server knows the locks of a failed execution.
        if options is None or options.transport == "http":
            continue
        if static is None:
            yield HealthCheck(
                name,
                "warning",
                f"its scope {options.scope} differs between runs: clean-up after a failure finds only values that"
                " are registered",
                f"backstay n8n scopes add VALUE --env {env}, or rely on the TTL of {options.ttl_seconds} s",
            )
        elif static not in registered:
            yield HealthCheck(
                name,
                "warning",
                f"its scope {static!r} is not in {envs.SCOPES} of {env}: clean-up after a failure does not check it",
                f"backstay n8n scopes add {static} --env {env}",
            )


def _ids(workspace: Workspace, env: str) -> Iterator[HealthCheck]:
    for key in workspace.keys:
        try:
            workspace.hydrate(env, key)
        except N8nError as error:
            yield HealthCheck(f"workflow {key}", "error", str(error), "backstay n8n hydrate reports the same")
    for key in workspace.credentials(env):
        entry = workspace.entry(env, key, "credentials")
        if str(entry.get("id", "")).startswith(envs.LOCAL):
            command = (
                f"backstay n8n manage-credentials create --env {env} --key {key} --type {entry.get('type') or 'TYPE'}"
            )
            yield HealthCheck(
                f"credential {key}",
                "warning",
                "its id is a local one, not n8n's",
                f"{command} --env-vars FIELD=VARIABLE,…, or import one with this id",
            )
