"""The inputs of the primitives: names, types, defaults and validation.

A missing input gets its documented default. An invalid input stops the call: an expression of the caller that fails
must not lock a wrong scope, or create a lock that never expires.
"""

from __future__ import annotations

from collections.abc import Sequence

from backstay.interop.n8n_wire.keys import LARGEST_LIMIT, LONGEST_SECONDS, MAX_WAIT_SECONDS, TTL_SECONDS
from backstay.n8n.primitives.builder import WorkflowBuilder, js

ACQUIRE = {
    "scope": "string",
    "ttl_seconds": "number",
    "execution_id": "string",
    "wait_till_lock_released": "boolean",
    "max_wait_seconds": "number",
    "lock_id": "string",
    "workflow_id": "string",
    "workflow_name": "string",
}
RELEASE = {"scope": "string", "lock_id": "string"}
LIMIT = {"scope": "string", "limit": "number", "windowSeconds": "number"}

#: A validation rule as two JavaScript expressions: whether the input is invalid, and the error message.
InputRule = tuple[str, str]


def given(field: str) -> str:
    return f"($json.{field} ?? '') !== ''"


def text(field: str) -> str:
    return f"String($json.{field} ?? '')"


def number(field: str, default: int) -> str:
    return f"{given(field)} ? Number($json.{field}) : {default}"


TTL = number("ttl_seconds", TTL_SECONDS)
MAX_WAIT = number("max_wait_seconds", MAX_WAIT_SECONDS)
WAITS = "String($json.wait_till_lock_released ?? '') !== 'false'"
SCOPE = text("scope")


def _scope() -> InputRule:
    # A scope must be a text or a finite number. If the caller's expression reads a missing field, its value may be NaN.
    # Converted to text, all such callers would share the scope "NaN".
    texts = "(typeof $json.scope === 'string' || Number.isFinite($json.scope))"
    message = js("scope is empty or not a text: it names what is locked or counted")
    return (f"!{texts} || {SCOPE}.trim() === ''", message)


def _one_call(what: str) -> InputRule:
    message = (
        f"$input.all().length + {js(f' items arrived, but {what}: turn on Execute Once, or call it for each item')}"
    )
    return ("$input.all().length > 1", message)


def _whole(field: str, what: str, largest: int = LONGEST_SECONDS, *, needed: bool = False) -> InputRule:
    """Return the rule for an input that is an integer from 1 to `largest`. The input may be missing unless `needed` is
    set.
    """
    value = f"Number($json.{field})"
    right = f"/^[0-9]+$/.test({text(field)}) && {value} >= 1 && {value} <= {largest}"
    wrong = f"!({right})"
    if not needed:
        wrong = f"{given(field)} && {wrong}"
    message = (
        f"{field} must be a whole number of {what} from 1 to {largest}, not "
        if what
        else f"{field} must be a whole number from 1 to {largest}, not "
    )
    return (wrong, f"{js(message)} + JSON.stringify($json.{field} ?? null)")


def _seconds(field: str) -> InputRule:
    """Return the rule for a number of seconds, with or without a fraction, from 0 to the longest duration."""
    right = f"/^[0-9]+([.][0-9]+)?$/.test({text(field)}) && Number($json.{field}) <= {LONGEST_SECONDS}"
    message = f"{field} must be a number of seconds from 0 to {LONGEST_SECONDS}, not "
    return (f"{given(field)} && !({right})", f"{js(message)} + JSON.stringify($json.{field})")


ACQUIRE_RULES: tuple[InputRule, ...] = (
    _one_call("a lock is acquired once"),
    _scope(),
    _whole("ttl_seconds", "seconds"),
    _seconds("max_wait_seconds"),
    (
        "!['', 'true', 'false'].includes(String($json.wait_till_lock_released ?? ''))",
        f"{js('wait_till_lock_released must be true or false, not ')} + JSON.stringify($json.wait_till_lock_released)",
    ),
)
RELEASE_RULES: tuple[InputRule, ...] = (
    _one_call("a lock is released once"),
    _scope(),
    (f"{text('lock_id')}.trim() === ''", js("lock_id is empty: pass the one that lock_acquisition returned")),
)
LIMIT_RULES: tuple[InputRule, ...] = (
    _scope(),
    _whole("limit", "", LARGEST_LIMIT, needed=True),
    _whole("windowSeconds", "seconds", needed=True),
)

#: Over HTTP the scope is a path segment, where `.` and `..` would be resolved as relative paths.
IN_A_PATH: tuple[InputRule, ...] = (
    (
        f"['.', '..'].includes({SCOPE})",
        f"{js('scope is ')} + JSON.stringify($json.scope) + {js(', which cannot be part of a URL path')}",
    ),
)

CHECK, RIGHT, WRONG = "Check Input", "Input OK?", "Bad Input — Stop"


def check(builder: WorkflowBuilder, rules: Sequence[InputRule], trigger: str, behind: str) -> None:
    """Add nodes that validate the items from the trigger. When any item breaks one of the rules, they fail the call;
    otherwise they pass all items to the node `behind`.
    """
    code = js("")
    for wrong, message in reversed(rules):
        code = f"{wrong} ? {message} : {code}"
    problems = f"$({js(CHECK)}).all().map((one) => one.json.problem).filter((one) => one !== '')"
    builder.fields(CHECK, (1, 0), {"problem": ("string", code)}, keep=True)
    builder.condition(RIGHT, (2, 0), f"{problems}.length === 0")
    builder.stop_and_error(WRONG, (3, 1), f"{js('Bad input: ')} + {problems}[0]")
    builder.chain(trigger, CHECK, RIGHT)
    builder.fork(RIGHT, behind, WRONG)
