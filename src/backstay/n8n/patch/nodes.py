"""The nodes that weaving adds: their names, their stable ids, and what n8n is told about each."""

from __future__ import annotations

import json
import uuid
from typing import Any

from backstay.n8n.model import BASE

#: What n8n keeps of a workflow's name; a longer one it refuses.
LONGEST_NAME = 128

_NAMESPACE = uuid.UUID("6f0c9d0e-5d3b-5f2a-9a44-3c1f0b7e8a11")

ACQUIRE, CONFIRM, GATE, RELEASE = "Lock Acquire", "Lock Confirm", "Lock Gate", "Lock Release"
CONFIRMED = "Lock Confirmed?"
BODY, FAILED, RAISE = "Locked Body", "Body Failed?", "Raise Body Error"
SENT, AGAIN = "What Was Sent", "Raise Or Retry"
RETRIED, NOT_YET, FIRST_ERROR, ENDED = "Failed Or Retried", "Failed Just Now?", "Raise First Error", "Retry Ended"
HELD_RESULT, RESULT, NOTHING_LOST = "Lock Result", "Body Result", "Body Gave Items"
EACH, MARK, CALLED, WHICH = "Each Item", "Mark", "Locked Body Input", "Which Trigger"
BY_ITSELF, UNLOCKED = "Called By Its Lock?", "Raise No Lock"
CHECK, LIMIT_GATE, ALLOWED, DENIED = "Rate Limit Check", "Rate Limit Gate", "Rate Limit Allowed?", "Rate Limit Denied"


def numbered(name: str, place: int) -> str:
    """The first of its kind has the plain name."""
    return name if place == 0 else f"{name} {place + 1}"


def beside(name: str, what: str) -> str:
    """What a workflow is called that stands beside another."""
    end = f" ({what})"
    room = LONGEST_NAME - len(end)
    return f"{name if len(name) <= room else f'{name[: room - 1]}…'}{end}"


def to(node: str, index: int = 0) -> dict[str, Any]:
    return {"node": node, "type": "main", "index": index}


def node_id(key: str, name: str) -> str:
    """The same for the same node, however often it is made."""
    whole = name.encode("utf-8", "backslashreplace").decode()  # a name may hold half a character
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
    """n8n's way of naming a workflow; the id itself is the environment's."""
    return {"__rl": True, "mode": "id", "value": f"{{{{@:env:workflows.{key}.id}}}}"}


def call(key: str, name: str, called: str, inputs: dict[str, Any], position: list[int]) -> dict[str, Any]:
    """Calls a primitive once, however many items arrive."""
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
    """Waits for both inputs and hands on the second as it is: items, binary data and pairing."""
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


def choice(key: str, name: str, condition: str, position: list[int], kind: str = "if") -> dict[str, Any]:
    """An If (or Filter) on one expression that is true or false."""
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
                        "leftValue": f"={{{{ {condition} }}}}",
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


#: n8n replaces a message that has one of these in it, in whatever word ("preexisting"), by its own for that code.
_TAKEN = (
    "ECONNREFUSED ECONNRESET ENOTFOUND ETIMEDOUT ERRADDRINUSE EADDRNOTAVAIL ECONNABORTED EHOSTUNREACH EAI_AGAIN ENOENT"
    " EISDIR ENOTDIR EACCES EEXIST EPERM GETADDRINFO"
)


def spared(message: str) -> str:
    """Code for a message that n8n leaves as it is: an invisible mark keeps such words apart."""
    words = "|".join(f"{word[0]}(?={word[1:]})" for word in _TAKEN.split())
    return f"({message}).replace(/{words}/gi, '$&\\u2060')"


def stop(key: str, name: str, message: str, position: list[int]) -> dict[str, Any]:
    """Stop and Error. message: code for its text."""
    return node(key, name, "stopAndError", 1, {"errorMessage": f"={{{{ {spared(message)} }}}}"}, position)


def not_by_itself(key: str, first: list[int], second: list[int]) -> list[dict[str, Any]]:
    """For what runs under another's lock: n8n's retry of it alone, from its beginning, is told off there."""
    told = quoted("This is the body of a lock, and here none is taken: retry the locked workflow")
    return [choice(key, BY_ITSELF, "$mode !== 'retry'", first), stop(key, UNLOCKED, told, second)]


def rewrite(key: str, name: str, expression: str, position: list[int], **more: Any) -> dict[str, Any]:
    """Each item's JSON becomes what the expression gives; binary data and pairing stay."""
    # 3.3 and not later: from 3.4 on a raw output cannot keep binary data.
    parameters = {
        "mode": "raw",
        "jsonOutput": f"={{{{ {expression} }}}}",
        "includeOtherFields": False,
        "options": {"includeBinary": True},
    }
    return node(key, name, "set", 3.3, parameters, position, **more)


def called_trigger(key: str, name: str, position: list[int]) -> dict[str, Any]:
    return node(key, name, "executeWorkflowTrigger", 1.1, {"inputSource": "passthrough"}, position)


def quoted(text: str) -> str:
    """As JavaScript writes it, inside an expression: braces in it would end the expression."""
    return json.dumps(text, ensure_ascii=False).replace("}", "\\u007d").replace("{", "\\u007b")
