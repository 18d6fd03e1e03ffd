"""Factories for the nodes that patches add: their names, stable ids and n8n parameters."""

from __future__ import annotations

import json
import uuid
from typing import Any

from backstay.n8n.model import BASE

#: The longest workflow name that n8n accepts.
LONGEST_NAME = 128

_NAMESPACE = uuid.UUID("6f0c9d0e-5d3b-5f2a-9a44-3c1f0b7e8a11")

LOCK_ACQUIRE, LOCK_CONFIRM, LOCK_GATE, LOCK_RELEASE = "Lock Acquire", "Lock Confirm", "Lock Gate", "Lock Release"
LOCK_CONFIRMED = "Lock Confirmed?"
LOCKED_BODY, BODY_FAILED, RAISE_BODY_ERROR = "Locked Body", "Body Failed?", "Raise Body Error"
WHAT_WAS_SENT, RAISE_OR_RETRY = "What Was Sent", "Raise Or Retry"
FAILED_OR_RETRIED, FAILED_JUST_NOW, RAISE_FIRST_ERROR, RETRY_ENDED = (
    "Failed Or Retried",
    "Failed Just Now?",
    "Raise First Error",
    "Retry Ended",
)
LOCK_RESULT, BODY_RESULT, BODY_GAVE_ITEMS = "Lock Result", "Body Result", "Body Gave Items"
EACH_ITEM, MARK, BODY_INPUT, WHICH_TRIGGER = "Each Item", "Mark", "Locked Body Input", "Which Trigger"
CALLED_BY_LOCK, RAISE_NO_LOCK = "Called By Its Lock?", "Raise No Lock"
LIMIT_CHECK, LIMIT_GATE, LIMIT_ALLOWED, LIMIT_DENIED = (
    "Rate Limit Check",
    "Rate Limit Gate",
    "Rate Limit Allowed?",
    "Rate Limit Denied",
)


def numbered(name: str, place: int) -> str:
    """Return the name with a number; the first node of a kind keeps the plain name."""
    return name if place == 0 else f"{name} {place + 1}"


def derived_name(name: str, what: str) -> str:
    """Name a workflow that belongs to another one, cut to the length that n8n accepts."""
    end = f" ({what})"
    room = LONGEST_NAME - len(end)
    return f"{name if len(name) <= room else f'{name[: room - 1]}…'}{end}"


def link_to(node: str, index: int = 0) -> dict[str, Any]:
    """Return a connection target in n8n's format."""
    return {"node": node, "type": "main", "index": index}


def node_id(key: str, name: str) -> str:
    """Return a deterministic id: the same node always gets the same one."""
    whole = name.encode("utf-8", "backslashreplace").decode()  # a name may contain a lone surrogate
    return str(uuid.uuid5(_NAMESPACE, f"{key}/{whole}"))


def node(
    key: str, name: str, kind: str, version: float, parameters: dict[str, Any], position: list[int], **more: Any
) -> dict[str, Any]:
    return {
        "parameters": parameters,
        "id": node_id(key, name),
        "name": name,
        "type": f"{BASE}{kind}",
        "typeVersion": version,
        "position": position,
        **more,
    }


def workflow_id(key: str) -> dict[str, Any]:
    """Return n8n's reference to a workflow, with a placeholder for the environment's id."""
    return {"__rl": True, "mode": "id", "value": f"{{{{@:env:workflows.{key}.id}}}}"}


def call(key: str, name: str, called: str, inputs: dict[str, Any], position: list[int]) -> dict[str, Any]:
    """Build a call of a primitive that runs once, regardless of the number of items."""
    return node(
        key,
        name,
        "executeWorkflow",
        1.2,
        {
            "workflowId": workflow_id(called),
            "workflowInputs": {"mappingMode": "defineBelow", "value": inputs, "matchingColumns": [], "schema": []},
            "mode": "once",
            "options": {},
        },
        position,
        executeOnce=True,
    )


def gate(key: str, name: str, position: list[int]) -> dict[str, Any]:
    """Build a Merge node that waits for both inputs and passes on the second unchanged: items, binary data and
    pairing.
    """
    return node(
        key,
        name,
        "merge",
        3.2,
        {
            "mode": "chooseBranch",
            "chooseBranchMode": "waitForAll",
            "output": "specifiedInput",
            "useDataOfInput": 2,
            "numberInputs": 2,
        },
        position,
    )


def condition(key: str, name: str, code: str, position: list[int], kind: str = "if") -> dict[str, Any]:
    """Build an If (or Filter) node on one boolean expression."""
    return node(
        key,
        name,
        kind,
        2.2,
        {
            "conditions": {
                "options": {"caseSensitive": True, "leftValue": "", "typeValidation": "strict", "version": 2},
                "conditions": [
                    {
                        "id": node_id(key, f"{name}/condition"),
                        "leftValue": f"={{{{ {code} }}}}",
                        "rightValue": "",
                        "operator": {"type": "boolean", "operation": "true", "singleValue": True},
                    }
                ],
                "combinator": "and",
            },
            "options": {},
        },
        position,
    )


#: n8n replaces an error message that contains one of these codes, even inside a word ("preexisting"), with its own
#: text.
_N8N_ERROR_CODES = (
    "ECONNREFUSED ECONNRESET ENOTFOUND ETIMEDOUT ERRADDRINUSE EADDRNOTAVAIL ECONNABORTED EHOSTUNREACH EAI_AGAIN ENOENT"
    " EISDIR ENOTDIR EACCES EEXIST EPERM GETADDRINFO"
)


def protect_message(message: str) -> str:
    """Return code for a message that n8n does not replace: a zero-width character splits each code."""
    words = "|".join(f"{word[0]}(?={word[1:]})" for word in _N8N_ERROR_CODES.split())
    return f"({message}).replace(/{words}/gi, '$&\\u2060')"


def stop_and_error(key: str, name: str, message: str, position: list[int]) -> dict[str, Any]:
    """Build a Stop and Error node. `message` is code for its text."""
    return node(key, name, "stopAndError", 1, {"errorMessage": f"={{{{ {protect_message(message)} }}}}"}, position)


def refuse_retry(key: str, first: list[int], second: list[int]) -> list[dict[str, Any]]:
    """Build the nodes at the start of a body that make n8n's retry of the body alone fail: it would run without the
    lock.
    """
    refusal = js_string("This is the body of a lock, and here none is taken: retry the locked workflow")
    return [
        condition(key, CALLED_BY_LOCK, "$mode !== 'retry'", first),
        stop_and_error(key, RAISE_NO_LOCK, refusal, second),
    ]


def set_json(key: str, name: str, expression: str, position: list[int], **more: Any) -> dict[str, Any]:
    """Build a Set node that replaces each item's JSON with the expression's value; binary data and pairing are kept."""
    # Version 3.3: from 3.4 on, a raw output drops binary data.
    parameters = {
        "mode": "raw",
        "jsonOutput": f"={{{{ {expression} }}}}",
        "includeOtherFields": False,
        "options": {"includeBinary": True},
    }
    return node(key, name, "set", 3.3, parameters, position, **more)


def called_trigger(key: str, name: str, position: list[int]) -> dict[str, Any]:
    return node(key, name, "executeWorkflowTrigger", 1.1, {"inputSource": "passthrough"}, position)


def js_string(text: str) -> str:
    """Return a JavaScript string literal without braces, which would end the surrounding n8n expression."""
    return json.dumps(text, ensure_ascii=False).replace("}", "\\u007d").replace("{", "\\u007b")
