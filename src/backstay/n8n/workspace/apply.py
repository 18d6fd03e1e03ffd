"""Apply locks, limits and error handlers to a workspace's workflows: the template, the workflows it needs, and the
settings.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Literal

from backstay.errors import BadWorkflow, PatchRefused, WorkspaceError
from backstay.n8n.analysis.expressions import ParameterText
from backstay.n8n.model import Workflow
from backstay.n8n.patch import patch
from backstay.n8n.patch.patch import LimitOptions, LockOptions, Patched
from backstay.n8n.primitives import KEYS, Transport
from backstay.n8n.workspace.environments import LOCAL
from backstay.n8n.workspace.hydrate import placeholders
from backstay.n8n.workspace.install import ERROR_HANDLER, LOCK_PAIR, RATE_LIMIT, transports
from backstay.n8n.workspace.workspace import Workspace

Denied = Literal["passthrough", "stop", "error"]


def add_lock(
    workspace: Workspace,
    key: str,
    *,
    scope: str,
    ttl_seconds: int = 86_400,
    max_wait_seconds: int = 86_400,
    fail_fast: bool = False,
    per_item: bool = False,
    lock_on_error: bool = False,
    keep_failed: bool = False,
    in_place: bool = False,
) -> Patched:
    """Add a lock inside edit(). A static scope is registered in every environment."""
    _refuse_primitive(key)
    transport = _installed_transport(workspace, LOCK_PAIR, "create-lock")
    if lock_on_error and ERROR_HANDLER not in transports(workspace, [ERROR_HANDLER]):
        raise WorkspaceError(
            f"--lock-on-error needs {ERROR_HANDLER}, which is not installed:"
            " `backstay n8n create-lock --include-error-handler` installs it"
        )
    options = LockOptions(
        scope=scope,
        ttl_seconds=ttl_seconds,
        max_wait_seconds=max_wait_seconds,
        fail_fast=fail_fast,
        transport=transport,
        per_item=per_item,
        error_workflow=ERROR_HANDLER if lock_on_error else "",
        keep_failed=keep_failed,
        in_place=in_place,
    )
    before = error_handler_of(workspace, key)
    if lock_on_error and before not in ("", workflow_reference(ERROR_HANDLER)):
        workspace.notes.append(
            f"{key} had the error handler {before}; {ERROR_HANDLER} replaces it until the lock is removed"
        )
    with _naming(key):
        patched = patch.add_lock(workspace.read(key), key, options)
    _refuse_mixed_transports(workspace, key, patched.workflow)
    _write_patched(workspace, key, patched)
    if patched.static_scope is not None:
        for env in workspace.select_environments(None):
            workspace.add_scope(env, patched.static_scope)
    needed = (*LOCK_PAIR, *([ERROR_HANDLER] if lock_on_error else []))
    _register(workspace, needed)
    _register_holder(workspace, key)
    return patched


def add_limit(
    workspace: Workspace, key: str, *, scope: str, limit: int, window_seconds: int, on_denied: Denied = "passthrough"
) -> Patched:
    """Add a rate limit inside edit()."""
    _refuse_primitive(key)
    transport = _installed_transport(workspace, (RATE_LIMIT,), "create-lock --include-rate-limit")
    options = LimitOptions(
        scope=scope, limit=limit, window_seconds=window_seconds, on_denied=on_denied, transport=transport
    )
    with _naming(key):
        patched = patch.add_limit(workspace.read(key), key, options)
    _refuse_mixed_transports(workspace, key, patched.workflow)
    _write_patched(workspace, key, patched)
    _register(workspace, (RATE_LIMIT,))
    return patched


def remove_lock(workspace: Workspace, key: str) -> Patched:
    """Remove the lock inside edit(). The scope stays registered: other workflows may use it."""
    with _naming(key):
        patched = patch.remove_lock(workspace.read(key), key, dict(_others(workspace, key)))
    _write_patched(workspace, key, patched)
    _unregister_holder(workspace, key)
    return patched


def remove_limit(workspace: Workspace, key: str) -> Patched:
    """Remove the rate limit inside edit()."""
    with _naming(key):
        patched = patch.remove_limit(workspace.read(key), key, dict(_others(workspace, key)))
    _write_patched(workspace, key, patched)
    return patched


def error_handler_of(workspace: Workspace, key: str) -> str:
    """Return what n8n starts when the workflow fails: `{{@:env:workflows.<key>.id}}`, an id, or "". Without an error
    workflow in its settings, describe the workflow's own Error Trigger.
    """
    workflow = workspace.read(key)
    own = next((f"its own {node.name!r}" for node in workflow.triggers if node.kind == "errorTrigger"), "")
    return str(workflow.settings.get("errorWorkflow") or own)


def workflow_reference(key: str) -> str:
    """Return the placeholder of a workflow's id."""
    return f"{{{{@:env:workflows.{key}.id}}}}"


def register_error_handler(workspace: Workspace, key: str, handler: str, *, force: bool = False) -> bool:
    """Register an error workflow inside edit(). Return whether anything changed. `force` replaces another handler."""
    if key == handler:
        raise WorkspaceError(f"{key} cannot be its own error handler: its own failures would start it again")
    called = workspace.read(handler)
    if not any(node.kind == "errorTrigger" for node in called.triggers):
        raise WorkspaceError(f"{handler} has no Error Trigger, so n8n would never start it as an error handler")
    workflow = workspace.read(key).copy()
    before = error_handler_of(workspace, key)
    _register(workspace, (handler,))
    if before == workflow_reference(handler):
        return False
    if before and not force:
        raise WorkspaceError(f"{key} has another error handler ({before}); --force replaces it")
    workflow.data["settings"] = {**workflow.settings, "errorWorkflow": workflow_reference(handler)}
    workspace.write(key, workflow)
    return True


@contextmanager
def _naming(key: str) -> Generator[None]:
    """Prefix a PatchRefused with the workflow's key, so that a command on many workflows names the refused one."""
    try:
        yield
    except PatchRefused as error:
        raise PatchRefused(f"{key}: {error}") from error


def _refuse_primitive(key: str) -> None:
    if key in KEYS:
        raise PatchRefused(f"{key} is one of the primitives and takes no lock or limit")


def _installed_transport(workspace: Workspace, keys: tuple[str, ...], command: str) -> Transport:
    """Return the transport of the required primitives. Raise WorkspaceError when one is missing or they differ."""
    found = transports(workspace, keys)
    missing = [key for key in keys if key not in found]
    if missing:
        raise WorkspaceError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: `backstay n8n {command}`"
        )
    if len(set(found.values())) > 1:
        mixed = ", ".join(f"{key} uses {transport}" for key, transport in found.items())
        raise WorkspaceError(f"{mixed}: the transports do not share locks; run create-lock --force-overwrite")
    return next(iter(found.values()))


def _refuse_mixed_transports(workspace: Workspace, key: str, patched: Workflow) -> None:
    """Refuse two transports for one scope: they use different keys, so they would not exclude each other."""
    for kind, of in (("lock", patch.locks_of), ("limit", patch.limits_of)):
        mine = of(patched)
        for other, workflow in _others(workspace, key):
            with _naming(other):
                theirs = of(workflow)
            if mine and theirs and mine.transport != theirs.transport and _same_scope(mine.scope, theirs.scope):
                raise PatchRefused(
                    f"{key}: {other} has a {kind} on the same scope ({mine.scope}) over {theirs.transport}, this one"
                    f" would be over {mine.transport}: the transports do not share locks"
                )


def _same_scope(one: str, two: str) -> bool:
    """Whether two scopes are equal, also in different spellings: `orders` and `={{ 'orders' }}`."""
    return ParameterText.of(one).canonical == ParameterText.of(two).canonical


def _others(workspace: Workspace, key: str) -> Iterator[tuple[str, Workflow]]:
    """Yield the other workflows that can be read; `validate` reports the rest."""
    for other in workspace.keys:
        if other != key:
            try:
                yield other, workspace.read(other)
            except BadWorkflow:
                continue


def _write_patched(workspace: Workspace, key: str, patched: Patched) -> None:
    """Write the patched workflow, create or delete its companion workflows, and update the settings."""
    workspace.write(key, patched.workflow)
    for other, workflow in patched.others.items():
        if workspace.has(other):
            raise WorkspaceError(
                f"{workspace.template_path(other)} already exists: the body of {key} would be written there"
            )
        workspace.write(other, workflow)
        for env in workspace.environments:
            workspace.register(env, other, name=workflow.name or other)
        workspace.add_to_order(other)
    for gone in patched.gone:
        workspace.delete(gone)
        for env in workspace.environments:
            workspace.unregister(env, gone)
        workspace.remove_from_order(gone)


def _register(workspace: Workspace, keys: tuple[str, ...]) -> None:
    """Register the called workflows, because each needs an id in every environment."""
    for key in keys:
        for env in workspace.environments:
            if not workspace.entry(env, key).get("id"):
                workspace.register(env, key, name=workspace.read(key).name or key)


def _register_holder(workspace: Workspace, key: str) -> None:
    """Give the locked workflow an id, because the lock's holder reports it. A template without one gets a local id,
    as n8n would assign one on import.
    """
    if workspace.read(key).id:
        return
    for env in workspace.environments:
        if not workspace.entry(env, key):
            workspace.register(env, key, name="")


def _unregister_holder(workspace: Workspace, key: str) -> None:
    """Remove the id that only the lock needed: no other workflow refers to it, and n8n did not assign it."""
    if any(("env", f"workflows.{key}.id") in placeholders(workflow.data) for _, workflow in _others(workspace, key)):
        return
    for env in workspace.environments:
        entry = workspace.entry(env, key)
        if list(entry) == ["id"] and str(entry["id"]).startswith(LOCAL):
            workspace.unregister(env, key)
