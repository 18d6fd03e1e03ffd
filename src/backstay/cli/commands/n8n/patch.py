"""`backstay n8n add-…-to-workflow`, `remove-…` and `register-error-handler`: change one workflow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay.cli import exit_codes
from backstay.cli.commands.n8n.options import HERE, AsJson, DryRun, Key, Where, report_refusal, report_result
from backstay.cli.output import quote
from backstay.errors import ConfigError

if TYPE_CHECKING:
    from backstay.n8n.patch.patch import Patched
    from backstay.n8n.workspace.workspace import Workspace

Scope = Annotated[
    str,
    typer.Option(
        "--scope-expression",
        metavar="TEXT",
        help="The protected resource: ={{ 'excel-' + $json.fileId }}, =user-{{ $json.id }}, or plain text.",
        show_default=False,
    ),
]
Denials = ("passthrough", "stop", "error")


def add_lock(
    *,
    workflow_key: Key,
    scope_expression: Scope,
    ttl_seconds: Annotated[
        int,
        typer.Option("--ttl-seconds", metavar="N", min=1, help="The lock of a crashed holder expires after this time."),
    ] = 86_400,
    max_wait_seconds: Annotated[
        int, typer.Option("--max-wait-seconds", metavar="N", min=0, help="The longest wait for the lock.")
    ] = 86_400,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Fail at once when the lock is held.")] = False,
    per_item: Annotated[
        bool, typer.Option("--per-item", help="Take a lock for each item in turn instead of one for all.")
    ] = False,
    lock_on_error: Annotated[
        bool,
        typer.Option(
            "--lock-on-error", help="Release the lock after a failed execution with error_handler_lock_cleanup."
        ),
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Over http, accept a body that must stay inline: n8n in queue mode can retry it without the lock.",
        ),
    ] = False,
    keep_failed: Annotated[
        bool,
        typer.Option(
            "--keep-failed-executions",
            help="Over http, keep failed executions of an inline body; a retry of one runs without the lock. "
            "Implies --in-place.",
        ),
    ] = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Add a lock to a workflow: acquired after every trigger, and released once when the body succeeds or fails.

    The body is every node that runs under the lock; it receives exactly the trigger's items. A scope (the lock's name)
    that is the same in every run is registered in lockScopes of every environment, which clean-up checks after a failed
    execution; for a scope that is computed at run time, the command prints what to add.

    With the http transport, a body that cannot become a sub-workflow (it responds before its end, uses static
    data, waits for more than a minute) is refused, because n8n in queue mode could retry it without the lock.
    --in-place accepts this risk.

    [bold]Examples[/bold]

      backstay n8n add-lock-to-workflow --workflow-key nightly --scope-expression "={{ 'nightly' }}" --ttl-seconds 32400

      backstay n8n add-lock-to-workflow --workflow-key excel --scope-expression '={{ "excel-" + $json.body.fileId }}' \
--max-wait-seconds 30 --lock-on-error
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        patched = apply.add_lock(
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
    _report_patch(view, workflow_key, patched, _about_scope(patched), as_json=as_json, dry_run=dry_run)


def _about_scope(patched: Patched) -> str:
    from backstay.n8n.patch.patch import read_lock_options

    if patched.static_scope is not None:
        return f"The scope {quote(patched.static_scope)} is in lockScopes of every environment."
    options = read_lock_options(patched.workflow)
    if options is not None and options.transport == "http":
        return "The scope is computed at run time; clean-up after a failed execution finds it through the server."
    return (
        "The scope is computed at run time, so it is not in lockScopes: clean-up after a failed execution finds"
        " only registered scopes. Register the known values: backstay n8n scopes add VALUE"
    )


def add_rate_limit(
    *,
    workflow_key: Key,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="N", min=1, help="The number of executions that a window allows.", show_default=False
        ),
    ],
    window_seconds: Annotated[
        int, typer.Option("--window-seconds", metavar="N", min=1, help="The length of a window.", show_default=False)
    ],
    scope_expression: Scope,
    on_denied: Annotated[
        str,
        typer.Option(
            "--on-denied",
            metavar="|".join(Denials),
            help="Mark the items and continue, end the execution without an error, or fail it.",
        ),
    ] = "passthrough",
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Add a rate limit to a workflow. If the workflow also has a lock, the limit is checked first.

    [bold]Examples[/bold]

      backstay n8n add-rate-limit-to-workflow --workflow-key api --limit 100 --window-seconds 60 \
--scope-expression '=api-{{ $json.headers["x-user"] }}' --on-denied error
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    if on_denied not in Denials:
        raise ConfigError(f"--on-denied {on_denied!r} must be one of {', '.join(Denials)}")
    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        patched = apply.add_limit(
            view,
            workflow_key,
            scope=scope_expression,
            limit=limit,
            window_seconds=window_seconds,
            on_denied=on_denied,  # type: ignore[arg-type]  # one of the three
        )
    _report_patch(view, workflow_key, patched, "", as_json=as_json, dry_run=dry_run)


def remove_lock(
    *, workflow_key: Key, workspace: Where = HERE, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Remove the lock from a workflow. The file is restored byte for byte.

    [bold]Examples[/bold]

      backstay n8n remove-lock-from-workflow --workflow-key nightly
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        patched = apply.remove_lock(view, workflow_key)
    about = f"{workflow_key}: lock removed. Scopes stay registered; backstay n8n scopes rm removes one."
    _report_patch(view, workflow_key, patched, about, as_json=as_json, dry_run=dry_run)


def remove_rate_limit(
    *, workflow_key: Key, workspace: Where = HERE, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Remove the rate limit from a workflow. The file is restored byte for byte.

    [bold]Examples[/bold]

      backstay n8n remove-rate-limit-from-workflow --workflow-key api
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    with Workspace.open(workspace).edit(dry_run=dry_run) as view:
        patched = apply.remove_limit(view, workflow_key)
    _report_patch(view, workflow_key, patched, f"{workflow_key}: rate limit removed.", as_json=as_json, dry_run=dry_run)


def register_error_handler(
    *,
    workflow_key: Key,
    handler_key: Annotated[
        str, typer.Option("--handler-key", metavar="KEY", help="The error workflow.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace another handler without asking.")] = False,
    workspace: Where = HERE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set the workflow that n8n starts when this one fails. Asks before it replaces another error handler.

    [bold]Examples[/bold]

      backstay n8n register-error-handler --workflow-key nightly --handler-key error_handler_lock_cleanup
    """
    from backstay.n8n.workspace import apply
    from backstay.n8n.workspace.workspace import Workspace

    opened = Workspace.open(workspace)
    # Ask before the workspace is locked, because the user may take long to reply.
    before = apply.error_handler_of(opened, workflow_key)
    replaced = before not in ("", apply.workflow_reference(handler_key))
    if replaced and not force and not dry_run:
        asked = f"Replace the error handler {before} of {workflow_key}?"
        if not sys.stdin.isatty() or as_json or not typer.confirm(asked, err=True):
            message = f"{workflow_key} has another error handler ({before}), which was kept. --force replaces it"
            raise report_refusal(message, "AnotherHandler", exit_codes.FAILED, as_json=as_json)
    with opened.edit(dry_run=dry_run) as view:
        changed = apply.register_error_handler(view, workflow_key, handler_key, force=replaced or force)
    report_result(
        view,
        {
            "workflow_key": workflow_key,
            "handler_key": handler_key,
            "changed": changed,
            "replaced": before if replaced else None,
        },
        [
            f"{handler_key} runs when {workflow_key} fails."
            if changed
            else f"{handler_key} is already the error handler of {workflow_key}."
        ],
        as_json=as_json,
        dry_run=dry_run,
    )


def _report_patch(view: Workspace, key: str, patched: Patched, about: str, *, as_json: bool, dry_run: bool) -> None:
    facts: dict[str, Any] = {
        "workflow_key": key,
        "wiring": patched.wiring,
        "why": patched.why,
        "static_scope": patched.static_scope,
        "also": sorted(patched.others),
        "gone": list(patched.gone),
    }
    lines = [f"{key}: {patched.wiring}. {patched.why}"] if patched.why else []
    if patched.others:
        lines.append(f"Also created: {', '.join(sorted(patched.others))}.")
    if about:
        lines.append(about)
    report_result(view, facts, lines, as_json=as_json, dry_run=dry_run, warnings=patched.warnings)
