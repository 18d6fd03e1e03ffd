"""Add locks, limits and error handlers to the workflows of a workspace, and remove them.

Each change affects the template of the workflow, other workflows that the change needs or no longer needs, and the
settings of the environments. The functions that change something must be called inside `workspace.edit()`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Literal

from backstay.errors import BadWorkflow, PatchRefused, WorkspaceError
from backstay.n8n.analysis.expressions import ParameterText
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch import patch
from backstay.n8n.patch.patch import LimitOptions, LockOptions, Patched
from backstay.n8n.primitives import KEYS, Transport
from backstay.n8n.workspace.environments import LOCAL
from backstay.n8n.workspace.hydrate import find_placeholders
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
    """Add a lock to a workflow. If the lock's scope is the same in every run, also add it to the scopes that the
    settings of each environment list.
    """
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
    with _name_in_errors(key):
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
    """Add a rate limit to a workflow."""
    _refuse_primitive(key)
    transport = _installed_transport(workspace, (RATE_LIMIT,), "create-lock --include-rate-limit")
    options = LimitOptions(
        scope=scope, limit=limit, window_seconds=window_seconds, on_denied=on_denied, transport=transport
    )
    with _name_in_errors(key):
        patched = patch.add_limit(workspace.read(key), key, options)
    _refuse_mixed_transports(workspace, key, patched.workflow)
    _write_patched(workspace, key, patched)
    _register(workspace, (RATE_LIMIT,))
    return patched


def remove_lock(workspace: Workspace, key: str) -> Patched:
    """Remove the lock from a workflow. Its scope stays registered, because other workflows may use it."""
    with _name_in_errors(key):
        patched = patch.remove_lock(workspace.read(key), key, dict(_read_others(workspace, key)))
    _write_patched(workspace, key, patched)
    _unregister_holder(workspace, key)
    return patched


def remove_limit(workspace: Workspace, key: str) -> Patched:
    """Remove the rate limit from a workflow."""
    with _name_in_errors(key):
        patched = patch.remove_limit(workspace.read(key), key, dict(_read_others(workspace, key)))
    _write_patched(workspace, key, patched)
    return patched


def error_handler_of(workspace: Workspace, key: str) -> str:
    """Return what n8n starts when the workflow fails: the error workflow in its settings (a placeholder or an id);
    without one, a description of the workflow's own Error Trigger; without that, "".
    """
    workflow = workspace.read(key)
    own = next((f"its own {node.name!r}" for node in workflow.triggers if node.kind == "errorTrigger"), "")
    return str(workflow.settings.get("errorWorkflow") or own)


def workflow_reference(key: str) -> str:
    """Return the placeholder that stands for a workflow's id in templates."""
    return f"{{{{@:env:workflows.{key}.id}}}}"


def register_error_handler(workspace: Workspace, key: str, handler: str, *, force: bool = False) -> bool:
    """Set a workflow's error workflow. Return whether anything changed. Raise WorkspaceError when it has another one,
    unless `force` is set.
    """
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
def _name_in_errors(key: str) -> Generator[None]:
    """Put the workflow's key before the message of a PatchRefused that the block raises."""
    try:
        yield
    except PatchRefused as error:
        raise PatchRefused(f"{key}: {error}") from error


def _refuse_primitive(key: str) -> None:
    if key in KEYS:
        raise PatchRefused(f"{key} is one of the primitives and takes no lock or limit")


def _installed_transport(workspace: Workspace, keys: tuple[str, ...], command: str) -> Transport:
    """Return the transport (redis or http) of the primitives `keys`, the installed workflows that acquire and release
    locks or count hits. Raise WorkspaceError when one is missing, with the command that installs it, or when their
    transports differ.
    """
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


def _refuse_mixed_transports(workspace: Workspace, key: str, patched: N8nWorkflow) -> None:
    """Raise PatchRefused when another workflow locks or limits the same scope over another transport. The transports
    use different keys, so both workflows could hold the lock at once.
    """
    for kind, of in (("lock", patch.read_lock_options), ("limit", patch.read_limit_options)):
        mine = of(patched)
        for other, workflow in _read_others(workspace, key):
            with _name_in_errors(other):
                theirs = of(workflow)
            if mine and theirs and mine.transport != theirs.transport and _same_scope(mine.scope, theirs.scope):
                raise PatchRefused(
                    f"{key}: {other} has a {kind} on the same scope ({mine.scope}) over {theirs.transport}, this one"
                    f" would be over {mine.transport}: the transports do not share locks"
                )


def _same_scope(one: str, two: str) -> bool:
    """Whether two scopes are equal, also in different spellings: `orders` and `={{ 'orders' }}`."""
    return ParameterText.of(one).canonical == ParameterText.of(two).canonical


def _read_others(workspace: Workspace, key: str) -> Iterator[tuple[str, N8nWorkflow]]:
    """Yield the other workflows of the workspace, except files that are no valid workflows (`validate` reports
    those).
    """
    for other in workspace.keys:
        if other != key:
            try:
                yield other, workspace.read(other)
            except BadWorkflow:
                continue


def _write_patched(workspace: Workspace, key: str, patched: Patched) -> None:
    """Write the patched workflow, create or delete the workflows that belong to the patch, and update the settings."""
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
    """Register the workflows `keys` in every environment where they have no id yet, which gives them an id. They need
    one, because patched workflows call them by id.
    """
    for key in keys:
        for env in workspace.environments:
            if not workspace.entry(env, key).get("id"):
                workspace.register(env, key, name=workspace.read(key).name or key)


def _register_holder(workspace: Workspace, key: str) -> None:
    """Register the locked workflow in every environment, so that the files built from its template contain a workflow
    id: the holder of a lock stores the id of its workflow. Do nothing if the template has an id.
    """
    if workspace.read(key).id:
        return
    for env in workspace.environments:
        if not workspace.entry(env, key):
            workspace.register(env, key, name="")


def _unregister_holder(workspace: Workspace, key: str) -> None:
    """Undo `_register_holder`, unless another workflow refers to the id or n8n has assigned it."""
    if any(
        ("env", f"workflows.{key}.id") in find_placeholders(workflow.data)
        for _, workflow in _read_others(workspace, key)
    ):
        return
    for env in workspace.environments:
        entry = workspace.entry(env, key)
        if list(entry) == ["id"] and str(entry["id"]).startswith(LOCAL):
            workspace.unregister(env, key)
