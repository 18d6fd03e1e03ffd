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


def number_name(name: str, place: int) -> str:
    """Return the name of a node if a patch adds several of the same kind to a workflow. `place` counts from 0: `Lock
    Gate`, then `Lock Gate 2`, and so on.
    """
    return name if place == 0 else f"{name} {place + 1}"


def derived_name(name: str, what: str) -> str:
    """Return the name of a workflow that a patch creates for the workflow `name`: `<name> (<what>)`. A long `name` is
    cut to the length that n8n accepts.
    """
    end = f" ({what})"
    room = LONGEST_NAME - len(end)
    return f"{name if len(name) <= room else f'{name[: room - 1]}…'}{end}"


def link_to(node: str, index: int = 0) -> dict[str, Any]:
    """Return the target of a connection in n8n's format: the input number `index` of the node `node`."""
    return {"node": node, "type": "main", "index": index}


def node_id(key: str, name: str) -> str:
    """Return a node id that depends only on the workflow's key (its file name in the workspace) and the node's name."""
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
    """Return a reference to the workflow `key` in n8n's format. The id in it is a placeholder; building the workflow
    for an environment replaces it by the workflow's id there.
    """
    return {"__rl": True, "mode": "id", "value": f"{{{{@:env:workflows.{key}.id}}}}"}


def call(key: str, name: str, called: str, inputs: dict[str, Any], position: list[int]) -> dict[str, Any]:
    """Build an Execute Workflow node that calls the primitive `called` (a workflow such as `lock_acquisition`) once,
    not once per item.
    """
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
    """Build a node that holds items back until another node has run: a Merge node that waits for both inputs and passes
    on the items of the second one unchanged, with their binary data and their links to earlier items (`pairedItem`).
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
    """Build an If node on one boolean expression, or with `kind` "filter" a Filter node."""
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
    """Return JavaScript that computes the message and puts an invisible character into each of n8n's error codes in it.
    Without that, n8n would replace the whole message by its own text.
    """
    words = "|".join(f"{word[0]}(?={word[1:]})" for word in _N8N_ERROR_CODES.split())
    return f"({message}).replace(/{words}/gi, '$&\\u2060')"


def stop_and_error(key: str, name: str, message: str, position: list[int]) -> dict[str, Any]:
    """Build a Stop and Error node. `message` is a JavaScript expression for its text."""
    return node(key, name, "stopAndError", 1, {"errorMessage": f"={{{{ {protect_message(message)} }}}}"}, position)


def build_retry_check(key: str, first: list[int], second: list[int]) -> list[dict[str, Any]]:
    """Build the first nodes of a body that moved to a sub-workflow. They fail when n8n retries the sub-workflow alone,
    because it would run without the lock.
    """
    refusal = js_string("This is the body of a lock, and here none is taken: retry the locked workflow")
    return [
        condition(key, CALLED_BY_LOCK, "$mode !== 'retry'", first),
        stop_and_error(key, RAISE_NO_LOCK, refusal, second),
    ]


def set_json(key: str, name: str, expression: str, position: list[int], **more: Any) -> dict[str, Any]:
    """Build a Set node that replaces each item's JSON with the expression's value and keeps its binary data."""
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
    """Return the text as a JavaScript string literal, with braces escaped: a brace could end the n8n expression (`{{ …
    }}`) that contains the literal.
    """
    return json.dumps(text, ensure_ascii=False).replace("}", "\\u007d").replace("{", "\\u007b")
