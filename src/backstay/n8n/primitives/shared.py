"""The parts of the primitives that both transports share: inputs, outputs and error messages.

Callers rely on the names of nodes and fields, so they are defined only here.
"""

from __future__ import annotations

from collections.abc import Mapping

from backstay.n8n.primitives import inputs
from backstay.n8n.primitives.builder import WorkflowBuilder, first, js

TRIGGER = "Execute Workflow Trigger"
NOW = "$now.toMillis()"
LOCK = first("Build Lock Context")
RELEASE = first("Build Release Context")
NO_EXECUTION = "there was no execution: the trigger itself failed"

GridPosition = tuple[float, float]
#: Maps each field name of an item to the field's type and the JavaScript code of its value.
Fields = Mapping[str, tuple[str, str]]


# ── lock_acquisition ──


def add_acquire_inputs(d: WorkflowBuilder, own: Fields, rules: tuple[inputs.InputRule, ...] = ()) -> None:
    """Add the first nodes of lock_acquisition: the trigger, the validation, and `Build Lock Context`, whose fields all
    later nodes read. `own`: fields of that node that only this transport (redis or http) needs.
    """
    d.called_trigger(TRIGGER, (0, 0), inputs.ACQUIRE)
    inputs.check(d, (*inputs.ACQUIRE_RULES, *rules), TRIGGER, "Generate Lock Id")
    d.uuid("Generate Lock Id", (3, 0), "new_lock_id")
    d.fields(
        "Build Lock Context",
        (4, 0),
        {
            "scope": ("string", inputs.SCOPE),
            **own,
            "ttl": ("number", inputs.TTL),
            "lock_id": ("string", f"{inputs.text('lock_id')}.trim() || $json.new_lock_id"),
            "workflow_id": ("string", inputs.text("workflow_id")),
            "workflow_name": ("string", inputs.text("workflow_name")),
            "execution_id": ("string", f"{inputs.text('execution_id')} || $execution.id"),
            "wait_till_lock_released": ("boolean", inputs.WAITS),
            "max_wait_seconds": ("number", inputs.MAX_WAIT),
            "deadline_ms": ("number", f"{NOW} + 1000 * ({inputs.MAX_WAIT})"),
        },
    )


def add_acquire_output(d: WorkflowBuilder, at: GridPosition, texts: Mapping[str, str]) -> None:
    """Add the output node of lock_acquisition. Its item has the fields `acquired` and `count`, then text fields.
    `texts`: the JavaScript code of each text field, by field name.
    """
    fields = {"acquired": ("boolean", "true"), "count": ("number", "$json.count")}
    d.fields("Build Acquire Output", at, {**fields, **{field: ("string", code) for field, code in texts.items()}})


def add_held_error(d: WorkflowBuilder, at: GridPosition, counted: str) -> None:
    """Add the node that fails the call at once when the lock is held and the caller does not wait."""
    d.stop_and_error("Fail Fast — Lock Held", at, f"{_named()} + {js(' is held')} + {counted}")


def add_timeout_error(d: WorkflowBuilder, at: GridPosition, counted: str) -> None:
    """Add the node that fails the call when the wait timed out."""
    within = f"{js(' was not free within ')} + {LOCK}.max_wait_seconds + {js(' s')}"
    d.stop_and_error("Wait Timeout — Stop", at, f"{_named()} + {within} + {counted}")


def _named() -> str:
    return f"{js('Lock ')} + JSON.stringify({LOCK}.scope)"


# ── lock_release ──


def add_release_inputs(d: WorkflowBuilder, own: Fields, rules: tuple[inputs.InputRule, ...] = ()) -> None:
    """Add the first nodes of lock_release: the trigger, the validation, and `Build Release Context`. `own`: fields of
    that node that only this transport (redis or http) needs.
    """
    d.called_trigger(TRIGGER, (0, 0), inputs.RELEASE)
    inputs.check(d, (*inputs.RELEASE_RULES, *rules), TRIGGER, "Build Release Context")
    d.fields(
        "Build Release Context",
        (3, 0),
        {
            "scope": ("string", inputs.SCOPE),
            **own,
            "provided_lock_id": ("string", f"{inputs.text('lock_id')}.trim()"),
        },
    )


def add_release_output(d: WorkflowBuilder, at: GridPosition, idempotent: str) -> None:
    """Add the output node of lock_release."""
    d.fields(
        "Build Result",
        at,
        {
            "released": ("boolean", "true"),
            "idempotent": ("boolean", idempotent),
            "scope": ("string", f"{RELEASE}.scope"),
            "lock_id": ("string", f"{RELEASE}.provided_lock_id"),
        },
    )


# ── error_handler_lock_cleanup ──

#: The failed execution's id; empty when the trigger failed before an execution started.
FAILED_EXECUTION = "String(($json.execution ?? { }).id ?? '')"


def add_cleanup_output(
    d: WorkflowBuilder, at: GridPosition, *, cleaned: str, count: str, scopes: str, reason: str, once: bool = False
) -> None:
    """Add the output node of error_handler_lock_cleanup, for a run that has checked locks."""
    _log(d, "Log Cleanup", at, cleaned, count, scopes, reason, once=once)


def add_nothing_to_clean_output(d: WorkflowBuilder, reason: str) -> None:
    """Add the output node of error_handler_lock_cleanup for a run that has no lock to check. `reason`: JavaScript code
    of the message.
    """
    _log(d, "Log Nothing To Clean", (3, 2), "false", "0", "[]", reason)


def _log(
    d: WorkflowBuilder,
    name: str,
    at: GridPosition,
    cleaned: str,
    count: str,
    scopes: str,
    reason: str,
    *,
    once: bool = False,
) -> None:
    fields = {
        "cleaned": ("boolean", cleaned),
        "cleaned_count": ("number", count),
        "scopes": ("array", scopes),
        "reason": ("string", reason),
    }
    d.fields(name, at, fields, **({"executeOnce": True} if once else {}))


# ── rate_limit_check ──


def add_limit_inputs(d: WorkflowBuilder, behind: str, own: Fields) -> None:
    """Add the first nodes of rate_limit_check: the trigger, the validation, and a node named `behind`, from which later
    nodes read scope, limit and window. `own`: fields of that node that only this transport (redis or http) needs.
    """
    d.called_trigger(TRIGGER, (0, 0), inputs.LIMIT)
    inputs.check(d, inputs.LIMIT_RULES, TRIGGER, behind)
    d.fields(
        behind,
        (3, 0),
        {
            "scope": ("string", inputs.SCOPE),
            "limit": ("number", "Number($json.limit)"),
            "windowSeconds": ("number", "Number($json.windowSeconds)"),
            **own,
        },
    )


def add_limit_output(d: WorkflowBuilder, at: GridPosition, *, allowed: str, count: str, read: str) -> None:
    """Add the output node of rate_limit_check. `read` is JavaScript code for an object whose `scope` and `limit` are
    copied to the output.
    """
    d.fields(
        "Build Result",
        at,
        {
            "allowed": ("boolean", allowed),
            "scope": ("string", f"{read}.scope"),
            "count": ("number", count),
            "limit": ("number", f"{read}.limit"),
        },
    )
