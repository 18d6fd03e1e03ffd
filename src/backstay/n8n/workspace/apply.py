"""Locks and limits put on the workflows of a workspace: the template, what it needs beside it, and the settings."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Literal

from backstay.errors import BadWorkflow, PatchRefused, WorkspaceError
from backstay.n8n.analysis.expressions import Text
from backstay.n8n.model import Workflow
from backstay.n8n.patch import patch
from backstay.n8n.patch.patch import LimitOptions, LockOptions, Woven
from backstay.n8n.primitives import KEYS, Transport
from backstay.n8n.workspace.environments import LOCAL
from backstay.n8n.workspace.hydrate import placeholders
from backstay.n8n.workspace.install import ERROR_HANDLER, PAIR, RATE_LIMIT, transports
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
) -> Woven:
    """Inside edit(). A static scope is registered in every environment."""
    _refuse_primitive(key)
    transport = _spoken(workspace, PAIR, "create-lock")
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
    before = handler_of(workspace, key)
    if lock_on_error and before not in ("", reference(ERROR_HANDLER)):
        workspace.notes.append(
            f"{key} had the error handler {before}; {ERROR_HANDLER} takes its place until the lock is removed"
        )
    with _named(key):
        woven = patch.add_lock(workspace.read(key), key, options)
    _refuse_mix(workspace, key, woven.workflow)
    _put(workspace, key, woven)
    if woven.static_scope is not None:
        for env in workspace.chosen(None):
            workspace.add_scope(env, woven.static_scope)
    needed = (*PAIR, *([ERROR_HANDLER] if lock_on_error else []))
    _register(workspace, needed)
    _name_holder(workspace, key)
    return woven


def add_limit(
    workspace: Workspace, key: str, *, scope: str, limit: int, window_seconds: int, on_denied: Denied = "passthrough"
) -> Woven:
    """Inside edit()."""
    _refuse_primitive(key)
    transport = _spoken(workspace, (RATE_LIMIT,), "create-lock --include-rate-limit")
    options = LimitOptions(
        scope=scope, limit=limit, window_seconds=window_seconds, on_denied=on_denied, transport=transport
    )
    with _named(key):
        woven = patch.add_limit(workspace.read(key), key, options)
    _refuse_mix(workspace, key, woven.workflow)
    _put(workspace, key, woven)
    _register(workspace, (RATE_LIMIT,))
    return woven


def remove_lock(workspace: Workspace, key: str) -> Woven:
    """The exact inverse, inside edit(). The scope stays registered: others may use it, and it costs one look."""
    with _named(key):
        woven = patch.remove_lock(workspace.read(key), key, dict(_others(workspace, key)))
    _put(workspace, key, woven)
    _forget_holder(workspace, key)
    return woven


def remove_limit(workspace: Workspace, key: str) -> Woven:
    with _named(key):
        woven = patch.remove_limit(workspace.read(key), key, dict(_others(workspace, key)))
    _put(workspace, key, woven)
    return woven


def handler_of(workspace: Workspace, key: str) -> str:
    """What n8n starts when a workflow fails: `{{@:env:workflows.<key>.id}}`, an id, or nothing. Where its settings name
    no error workflow, an Error Trigger of its own, in words.
    """
    workflow = workspace.read(key)
    own = next((f"its own {node.name!r}" for node in workflow.triggers if node.kind == "errorTrigger"), "")
    return str(workflow.settings.get("errorWorkflow") or own)


def reference(key: str) -> str:
    """A workflow's id, as templates name it."""
    return f"{{{{@:env:workflows.{key}.id}}}}"


def register_error_handler(workspace: Workspace, key: str, handler: str, *, force: bool = False) -> bool:
    """Whether anything changed. Another handler is replaced only with `force`. Inside edit()."""
    if key == handler:
        raise WorkspaceError(f"{key} cannot be its own error handler: it would be called by its own failures")
    called = workspace.read(handler)
    if not any(node.kind == "errorTrigger" for node in called.triggers):
        raise WorkspaceError(f"{handler} has no Error Trigger, so n8n would never start it as an error handler")
    workflow = workspace.read(key).copy()
    before = handler_of(workspace, key)
    _register(workspace, (handler,))
    if before == reference(handler):
        return False
    if before and not force:
        raise WorkspaceError(f"{key} has another error handler ({before}); --force replaces it")
    workflow.data["settings"] = {**workflow.settings, "errorWorkflow": reference(handler)}
    workspace.write(key, workflow)
    return True


@contextmanager
def _named(key: str) -> Generator[None]:
    """Of many workflows, which one was refused."""
    try:
        yield
    except PatchRefused as error:
        raise PatchRefused(f"{key}: {error}") from error


def _refuse_primitive(key: str) -> None:
    if key in KEYS:
        raise PatchRefused(f"{key} is one of the primitives: it takes no lock or limit itself")


def _spoken(workspace: Workspace, keys: tuple[str, ...], command: str) -> Transport:
    """What the primitives speak that are needed. Raises WorkspaceError when they are not there, or disagree."""
    found = transports(workspace, keys)
    missing = [key for key in keys if key not in found]
    if missing:
        raise WorkspaceError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: `backstay n8n {command}`"
        )
    if len(set(found.values())) > 1:
        mixed = ", ".join(f"{key} speaks {spoken}" for key, spoken in found.items())
        raise WorkspaceError(f"{mixed}: they would not see each other's locks; create-lock --force-overwrite mends it")
    return next(iter(found.values()))


def _refuse_mix(workspace: Workspace, key: str, woven: Workflow) -> None:
    """One transport for each scope: the keys of one are not those of the other."""
    for kind, of in (("lock", patch.locks_of), ("limit", patch.limits_of)):
        mine = of(woven)
        for other, workflow in _others(workspace, key):
            with _named(other):
                theirs = of(workflow)
            if mine and theirs and mine.transport != theirs.transport and _same_scope(mine.scope, theirs.scope):
                raise PatchRefused(
                    f"{key}: {other} has a {kind} on the same scope ({mine.scope}) through {theirs.transport}, this one"
                    f" would go through {mine.transport}: they would not see each other"
                )


def _same_scope(one: str, two: str) -> bool:
    """Also when they are written differently: `orders` and `={{ 'orders' }}`."""
    return Text.of(one).same == Text.of(two).same


def _others(workspace: Workspace, key: str) -> Iterator[tuple[str, Workflow]]:
    """The other workflows that can be read; what is wrong with the rest is for `validate` to say."""
    for other in workspace.keys:
        if other != key:
            try:
                yield other, workspace.read(other)
            except BadWorkflow:
                continue


def _put(workspace: Workspace, key: str, woven: Woven) -> None:
    workspace.write(key, woven.workflow)
    for other, workflow in woven.others.items():
        if workspace.has(other):
            raise WorkspaceError(f"{workspace.template_path(other)} is in the way: the body of {key} would be there")
        workspace.write(other, workflow)
        for env in workspace.environments:
            workspace.register(env, other, name=workflow.name or other)
        workspace.put_in_order(other)
    for gone in woven.gone:
        workspace.delete(gone)
        for env in workspace.environments:
            workspace.unregister(env, gone)
        workspace.drop_from_order(gone)


def _register(workspace: Workspace, keys: tuple[str, ...]) -> None:
    """What is called must have an id in every environment."""
    for key in keys:
        for env in workspace.environments:
            if not workspace.entry(env, key).get("id"):
                workspace.register(env, key, name=workspace.read(key).name or key)


def _name_holder(workspace: Workspace, key: str) -> None:
    """Whoever holds a lock says its id. A template that has none gets one, as n8n would give it at an import."""
    if workspace.read(key).id:
        return
    for env in workspace.environments:
        if not workspace.entry(env, key):
            workspace.register(env, key, name="")


def _forget_holder(workspace: Workspace, key: str) -> None:
    """The id that was made up for the lock alone: nobody else names it, and n8n does not know it."""
    if any(("env", f"workflows.{key}.id") in placeholders(workflow.data) for _, workflow in _others(workspace, key)):
        return
    for env in workspace.environments:
        entry = workspace.entry(env, key)
        if list(entry) == ["id"] and str(entry["id"]).startswith(LOCAL):
            workspace.unregister(env, key)
