"""`backstay n8n add-…-to-workflow` and back: locks, limits and error handlers of one workflow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.commands.n8n.options import HERE, AsJson, DryRun, Key, Where, finish, refuse
from backstay.cli.output import quoted
from backstay.errors import ConfigError

if TYPE_CHECKING:
    from backstay.n8n.patch.patch import Woven
    from backstay.n8n.workspace.workspace import Workspace

Scope = Annotated[
    str,
    typer.Option(
        "--scope-expression",
        metavar="TEXT",
        help="What is protected: ={{ 'excel-' + $json.fileId }}, =user-{{ $json.id }}, or plain text.",
        show_default=False,
    ),
]
Denials = ("passthrough", "stop", "error")


def add_lock(
    *,
    workflow_key: Key,
    scope_expression: Scope,
    ttl_seconds: Annotated[
        int, typer.Option("--ttl-seconds", metavar="N", min=1, help="How long a crashed holder is in the way.")
    ] = 86_400,
    max_wait_seconds: Annotated[
        int, typer.Option("--max-wait-seconds", metavar="N", min=0, help="How long to wait for the lock.")
    ] = 86_400,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Do not wait: fail when it is held.")] = False,
    per_item: Annotated[
        bool, typer.Option("--per-item", help="A lock for each item, one after the other, not one for all.")
    ] = False,
    lock_on_error: Annotated[
        bool,
        typer.Option("--lock-on-error", help="Release it after a failed execution: error_handler_lock_cleanup."),
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Over http, accept a body that must stay in its place: n8n in queue mode retries it without the lock.",
        ),
    ] = False,
    keep_failed: Annotated[
        bool,
        typer.Option(
            "--keep-failed-executions",
            help="Over http, of a body that must stay in its place: but a retry of one runs without the lock. "
            "Implies --in-place.",
        ),
    ] = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put a lock around a workflow: taken after every trigger, released once, however the body ends.

    The body sees exactly what the trigger sent. A scope that is the same in every run is registered
    in lockScopes of every environment; for another, the command says what to add.

    Over http a body that cannot become a sub-workflow (it answers from its midst, uses static data, waits
    for more than a minute) is refused: n8n in queue mode would retry it without the lock. --in-place accepts that.

    [bold]Examples[/bold]

      backstay n8n add-lock-to-workflow --workflow-key nightly --scope-expression "={{ 'nightly' }}" --ttl-seconds 32400

      backstay n8n add-lock-to-workflow --workflow-key excel --scope-expression '={{ "excel-" + $json.body.fileId }}' \
--max-wait-seconds 30 --lock-on-error
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        woven = apply.add_lock(
            view,
            workflow_key,
            scope=scope_expression,
            ttl_seconds=ttl_seconds,
            max_wait_seconds=max_wait_seconds,
            fail_fast=fail_fast,
            per_item=per_item,
            lock_on_error=lock_on_error,
            keep_failed=keep_failed,
            in_place=in_place,
        )
    _finish(view, workflow_key, woven, _about_scope(woven), as_json=as_json, dry_run=dry_run)


def _about_scope(woven: Woven) -> str:
    from backstay.n8n.patch.patch import locks_of

    if woven.static_scope is not None:
        return f"The scope {quoted(woven.static_scope)} is in lockScopes of every environment."
    options = locks_of(woven.workflow)
    if options is not None and options.transport == "http":
        return "What the scope comes to is not known here; clean-up after a failed execution finds it all the same."
    return (
        "What the scope comes to is not known here, so it is in no lockScopes: clean-up after a failed execution finds"
        " only what is registered. Add the values that you know: backstay n8n scopes add VALUE"
    )


def add_rate_limit(
    *,
    workflow_key: Key,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many in a window.", show_default=False)
    ],
    window_seconds: Annotated[
        int, typer.Option("--window-seconds", metavar="N", min=1, help="How long a window is.", show_default=False)
    ],
    scope_expression: Scope,
    on_denied: Annotated[
        str,
        typer.Option(
            "--on-denied",
            metavar="|".join(Denials),
            help="Mark the items and go on, end quietly, or fail.",
        ),
    ] = "passthrough",
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put a rate limit before a workflow. Before its lock, too, whichever was added first.

    [bold]Examples[/bold]

      backstay n8n add-rate-limit-to-workflow --workflow-key api --limit 100 --window-seconds 60 \
--scope-expression '=api-{{ $json.headers["x-user"] }}' --on-denied error
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    if on_denied not in Denials:
        raise ConfigError(f"--on-denied {on_denied!r} is none of {', '.join(Denials)}")
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        woven = apply.add_limit(
            view,
            workflow_key,
            scope=scope_expression,
            limit=limit,
            window_seconds=window_seconds,
            on_denied=on_denied,  # type: ignore[arg-type]  # one of the three
        )
    _finish(view, workflow_key, woven, "", as_json=as_json, dry_run=dry_run)


def remove_lock(
    *, workflow_key: Key, workspace: Where = HERE, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Take the lock off a workflow again: its file is byte for byte what it was before.

    [bold]Examples[/bold]

      backstay n8n remove-lock-from-workflow --workflow-key nightly
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        woven = apply.remove_lock(view, workflow_key)
    about = f"{workflow_key}: the lock is off. Scopes stay registered; backstay n8n scopes rm takes one out."
    _finish(view, workflow_key, woven, about, as_json=as_json, dry_run=dry_run)


def remove_rate_limit(
    *, workflow_key: Key, workspace: Where = HERE, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Take the rate limit off a workflow again: its file is byte for byte what it was before.

    [bold]Examples[/bold]

      backstay n8n remove-rate-limit-from-workflow --workflow-key api
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        woven = apply.remove_limit(view, workflow_key)
    _finish(view, workflow_key, woven, f"{workflow_key}: the rate limit is off.", as_json=as_json, dry_run=dry_run)


def register_error_handler(
    *,
    workflow_key: Key,
    handler_key: Annotated[
        str, typer.Option("--handler-key", metavar="KEY", help="The workflow that is told.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace another handler without asking.")] = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Name the workflow that n8n starts when this one fails. Asks before it replaces another.

    [bold]Examples[/bold]

      backstay n8n register-error-handler --workflow-key nightly --handler-key error_handler_lock_cleanup
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    opened = Workspace.open(workspace)
    # Asked before anything is locked: people take their time.
    before = apply.handler_of(opened, workflow_key)
    replaced = before not in ("", apply.reference(handler_key))
    if replaced and not force and not dry_run:
        asked = f"Replace the error handler {before} of {workflow_key}?"
        if not sys.stdin.isatty() or as_json or not typer.confirm(asked, err=True):
            told = f"{workflow_key} has another error handler ({before}); it was left alone. --force replaces it"
            raise refuse(told, "AnotherHandler", exit_codes.FAILED, as_json=as_json)
    with opened.edit(dry_run=dry_run) as view:
        changed = apply.register_error_handler(view, workflow_key, handler_key, force=replaced or force)
    finish(
        view,
        {
            "workflow_key": workflow_key,
            "handler_key": handler_key,
            "changed": changed,
            "replaced": before if replaced else None,
        },
        [
            f"{handler_key} is told when {workflow_key} fails."
            if changed
            else f"{handler_key} is the error handler of {workflow_key} already."
        ],
        as_json=as_json,
        dry_run=dry_run,
    )


def _finish(view: Workspace, key: str, woven: Woven, about: str, *, as_json: bool, dry_run: bool) -> None:
    facts: dict[str, Any] = {
        "workflow_key": key,
        "wiring": woven.wiring,
        "why": woven.why,
        "static_scope": woven.static_scope,
        "also": sorted(woven.others),
        "gone": list(woven.gone),
    }
    lines = [f"{key}: {woven.wiring}. {woven.why}"] if woven.why else []
    if woven.others:
        lines.append(f"Beside it: {', '.join(sorted(woven.others))}.")
    if about:
        lines.append(about)
    finish(view, facts, lines, as_json=as_json, dry_run=dry_run, warnings=woven.warnings)
