"""What a primitive is called with: the names and types of its inputs, their defaults, and what is wrong with them.

What is not given has the default that is documented. What is given and is not right stops the call: an expression that
went wrong in the caller must not become a lock on another scope, or one that never ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from backstay.interop.n8n_wire.keys import LARGEST_LIMIT, LONGEST_SECONDS, MAX_WAIT_SECONDS, TTL_SECONDS
from backstay.n8n.primitives.builder import Drawing, js

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

#: What is wrong (code that is true then), and how to say it (code).
Rule = tuple[str, str]


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


def _scope() -> Rule:
    # NaN is what a computation has come to that read something that was not there: everybody's would be the same.
    texts = "(typeof $json.scope === 'string' || Number.isFinite($json.scope))"
    told = js("scope is empty, or no text: it names what is locked or counted")
    return (f"!{texts} || {SCOPE}.trim() === ''", told)


def _one_call(what: str) -> Rule:
    said = f"$input.all().length + {js(f' items came, and {what}: turn on Execute Once, or call it for each item')}"
    return ("$input.all().length > 1", said)


def _whole(field: str, what: str, largest: int = LONGEST_SECONDS, *, needed: bool = False) -> Rule:
    """A whole number from 1 on."""
    value = f"Number($json.{field})"
    right = f"/^[0-9]+$/.test({text(field)}) && {value} >= 1 && {value} <= {largest}"
    wrong = f"!({right})"
    if not needed:
        wrong = f"{given(field)} && {wrong}"
    told = (
        f"{field} is a whole number of {what} from 1 to {largest}, and not "
        if what
        else f"{field} is a whole number from 1 on, and not "
    )
    return (wrong, f"{js(told)} + JSON.stringify($json.{field} ?? null)")


def _seconds(field: str) -> Rule:
    """A number from 0 on."""
    right = f"/^[0-9]+([.][0-9]+)?$/.test({text(field)}) && Number($json.{field}) <= {LONGEST_SECONDS}"
    told = f"{field} is a number of seconds from 0 to {LONGEST_SECONDS}, and not "
    return (f"{given(field)} && !({right})", f"{js(told)} + JSON.stringify($json.{field})")


ACQUIRE_RULES: tuple[Rule, ...] = (
    _one_call("a lock is taken once"),
    _scope(),
    _whole("ttl_seconds", "seconds"),
    _seconds("max_wait_seconds"),
    (
        "!['', 'true', 'false'].includes(String($json.wait_till_lock_released ?? ''))",
        f"{js('wait_till_lock_released is true or false, and not ')} + JSON.stringify($json.wait_till_lock_released)",
    ),
)
RELEASE_RULES: tuple[Rule, ...] = (
    _one_call("a lock is released once"),
    _scope(),
    (f"{text('lock_id')}.trim() === ''", js("lock_id is empty: pass the one that lock_acquisition gave")),
)
LIMIT_RULES: tuple[Rule, ...] = (
    _scope(),
    _whole("limit", "", LARGEST_LIMIT, needed=True),
    _whole("windowSeconds", "seconds", needed=True),
)

#: Over HTTP a lock's scope is a step of a path, where these two mean the folder itself and the one above.
IN_A_PATH: tuple[Rule, ...] = (
    (
        f"['.', '..'].includes({SCOPE})",
        f"{js('scope is ')} + JSON.stringify($json.scope) + {js(', which no address can name')}",
    ),
)

CHECK, RIGHT, WRONG = "Check Input", "Input OK?", "Bad Input — Stop"


def check(drawing: Drawing, rules: Sequence[Rule], trigger: str, behind: str) -> None:
    """From the trigger to `behind`, unless something is wrong with any item. The items stay as they are."""
    code = js("")
    for wrong, told in reversed(rules):
        code = f"{wrong} ? {told} : {code}"
    problems = f"$({js(CHECK)}).all().map((one) => one.json.problem).filter((one) => one !== '')"
    drawing.fields(CHECK, (1, 0), {"problem": ("string", code)}, keep=True)
    drawing.choice(RIGHT, (2, 0), f"{problems}.length === 0")
    drawing.stop(WRONG, (3, 1), f"{js('Bad input: ')} + {problems}[0]")
    drawing.line(trigger, CHECK, RIGHT)
    drawing.fork(RIGHT, behind, WRONG)
