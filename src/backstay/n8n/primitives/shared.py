"""What a primitive does alike on both transports: what it is asked, what it answers, and the words in which it says no.

Names of nodes and of fields are part of what callers and readers rely on, so they are written once, here.
"""

from __future__ import annotations

from collections.abc import Mapping

from backstay.n8n.primitives import inputs
from backstay.n8n.primitives.builder import Drawing, first, js

TRIGGER = "Execute Workflow Trigger"
NOW = "$now.toMillis()"
LOCK = first("Build Lock Context")
RELEASE = first("Build Release Context")
NO_EXECUTION = "there was no execution: the trigger itself failed"

Place = tuple[float, float]
#: Name → type and code.
Fields = Mapping[str, tuple[str, str]]


# ── lock_acquisition ──


def wants_lock(d: Drawing, own: Fields, rules: tuple[inputs.Rule, ...] = ()) -> None:
    """From the call to `Build Lock Context`, which everything behind it reads. own: what this transport adds."""
    d.called(TRIGGER, (0, 0), inputs.ACQUIRE)
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


def gives_lock(d: Drawing, at: Place, texts: Mapping[str, str]) -> None:
    """texts: the fields that follow `acquired` and `count`, name → code."""
    fields = {"acquired": ("boolean", "true"), "count": ("number", "$json.count")}
    d.fields("Build Acquire Output", at, {**fields, **{field: ("string", code) for field, code in texts.items()}})


def is_held(d: Drawing, at: Place, counted: str) -> None:
    d.stop("Fail Fast — Lock Held", at, f"{_named()} + {js(' is held')} + {counted}")


def is_late(d: Drawing, at: Place, counted: str) -> None:
    within = f"{js(' was not free within ')} + {LOCK}.max_wait_seconds + {js(' s')}"
    d.stop("Wait Timeout — Stop", at, f"{_named()} + {within} + {counted}")


def _named() -> str:
    return f"{js('Lock ')} + JSON.stringify({LOCK}.scope)"


# ── lock_release ──


def wants_release(d: Drawing, own: Fields, rules: tuple[inputs.Rule, ...] = ()) -> None:
    d.called(TRIGGER, (0, 0), inputs.RELEASE)
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


def is_released(d: Drawing, at: Place, idempotent: str) -> None:
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

#: A trigger that failed before there was an execution has none.
FAILED_EXECUTION = "String(($json.execution ?? { }).id ?? '')"


def is_cleaned(
    d: Drawing, at: Place, *, cleaned: str, count: str, scopes: str, reason: str, once: bool = False
) -> None:
    _log(d, "Log Cleanup", at, cleaned, count, scopes, reason, once=once)


def is_clean(d: Drawing, reason: str) -> None:
    """There was nothing to look for."""
    _log(d, "Log Nothing To Clean", (3, 2), "false", "0", "[]", reason)


def _log(
    d: Drawing, name: str, at: Place, cleaned: str, count: str, scopes: str, reason: str, *, once: bool = False
) -> None:
    fields = {
        "cleaned": ("boolean", cleaned),
        "cleaned_count": ("number", count),
        "scopes": ("array", scopes),
        "reason": ("string", reason),
    }
    d.fields(name, at, fields, **({"executeOnce": True} if once else {}))


# ── rate_limit_check ──


def wants_count(d: Drawing, behind: str, own: Fields) -> None:
    """From the call to `behind`, the node that what is counted is read from."""
    d.called(TRIGGER, (0, 0), inputs.LIMIT)
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


def is_counted(d: Drawing, at: Place, *, allowed: str, count: str, read: str) -> None:
    """read: code of the object that has `scope` and `limit`."""
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
