"""A workflow while it is drawn: nodes on a grid, lines between them, and the kinds of nodes that primitives need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from backstay.n8n.patch import nodes

#: The distances between columns and rows on n8n's canvas.
_WIDE, _HIGH = 220, 180

JsonObject = dict[str, Any]


def js(text: str) -> str:
    """A text as JavaScript writes it."""
    return nodes.quoted(text)


def expression(code: str) -> str:
    """Code as the value of a parameter."""
    if "}}" in code:
        raise ValueError(f"n8n would end the expression early: {code}")
    return f"={{{{ {code} }}}}"


def first(node: str) -> str:
    """What a node gave, from anywhere behind it: of its latest run."""
    return f"$({js(node)}).first().json"


def _place(at: tuple[float, float]) -> list[int]:
    column, row = at
    return [int(column * _WIDE), int(row * _HIGH)]


class Drawing:
    """`family` makes the nodes' ids: the same drawing has the same ids."""

    def __init__(self, family: str) -> None:
        self._family = family
        self.nodes: list[JsonObject] = []
        self.connections: JsonObject = {}
        self.settings: JsonObject = {"executionOrder": "v1"}

    # ── lines ──

    def line(self, *names: str) -> None:
        """Each node's first output to the next."""
        for one, two in pairwise(names):
            self.connect(one, two)

    def fork(self, name: str, yes: str, no: str) -> None:
        """An If's two ways."""
        self.connect(name, yes)
        self.connect(name, no, output=1)

    def connect(self, name: str, target: str, *, output: int = 0, index: int = 0) -> None:
        outputs = self.connections.setdefault(name, {"main": []})["main"]
        while len(outputs) <= output:
            outputs.append([])
        outputs[output].append(nodes.to(target, index))

    # ── nodes ──

    def node(
        self, name: str, kind: str, version: float, at: tuple[float, float], parameters: JsonObject, **more: Any
    ) -> None:
        self.nodes.append(nodes.node(self._family, name, kind, version, parameters, _place(at), **more))

    def called(self, name: str, at: tuple[float, float], inputs: Mapping[str, str]) -> None:
        """Starts when another workflow calls; inputs by name, with their types."""
        values = [{"name": field, "type": kind} for field, kind in inputs.items()]
        self.node(name, "executeWorkflowTrigger", 1.1, at, {"workflowInputs": {"values": values}})

    def on_error(self, name: str, at: tuple[float, float]) -> None:
        """Starts when a workflow that names this one as its error workflow fails."""
        self.node(name, "errorTrigger", 1, at, {})

    def fields(
        self,
        name: str,
        at: tuple[float, float],
        fields: Mapping[str, tuple[str, str]],
        *,
        keep: bool = False,
        **more: Any,
    ) -> None:
        """Edit Fields: name → type and code. keep: fields that the item has already stay."""
        rows = [
            {
                "id": nodes.node_id(self._family, f"{name}/{field}"),
                "name": field,
                "type": kind,
                "value": expression(code),
            }
            for field, (kind, code) in fields.items()
        ]
        self.rows(name, at, rows, keep=keep, **more)

    def rows(
        self, name: str, at: tuple[float, float], rows: list[JsonObject], *, keep: bool = False, **more: Any
    ) -> None:
        parameters = {"assignments": {"assignments": rows}, "includeOtherFields": keep, "options": {}}
        self.node(name, "set", 3.4, at, parameters, **more)

    def fixed(self, name: str, field: str, kind: str, value: str) -> JsonObject:
        """One row of Edit Fields whose value is a text and no code."""
        return {"id": nodes.node_id(self._family, f"{name}/{field}"), "name": field, "type": kind, "value": value}

    def row(self, name: str, field: str, kind: str, code: str) -> JsonObject:
        return self.fixed(name, field, kind, expression(code))

    def choice(self, name: str, at: tuple[float, float], code: str) -> None:
        """An If: the first way when the code is true."""
        expression(code)
        self.nodes.append(nodes.choice(self._family, name, code, _place(at)))

    def stop(self, name: str, at: tuple[float, float], code: str) -> None:
        """Stop and Error, with the code's text as its message."""
        expression(code)
        self.nodes.append(nodes.stop(self._family, name, code, _place(at)))

    def uuid(self, name: str, at: tuple[float, float], field: str) -> None:
        """A random UUID in a field. A Code node has no `crypto`, and an execution's id is not unique enough."""
        self.node(name, "crypto", 1, at, {"action": "generate", "dataPropertyName": field, "encodingType": "uuid"})

    def wait(self, name: str, at: tuple[float, float], seconds: float | str, **more: Any) -> None:
        """Stays in memory: a wait of 65 s or more would suspend the execution and lose what it gives to its caller."""
        self.node(name, "wait", 1.1, at, {"resume": "timeInterval", "amount": seconds, "unit": "seconds"}, **more)

    def redis(self, name: str, at: tuple[float, float], operation: str, key: str, **parameters: Any) -> None:
        """One command: `get` (with propertyName), `incr`, `set`, `delete`."""
        self.node(
            name,
            "redis",
            1,
            at,
            {"operation": operation, "key": expression(key), **parameters},
            credentials={"redis": {"id": "{{@:env:credentials.redis.id}}", "name": "{{@:env:credentials.redis.name}}"}},
        )

    def http(self, name: str, at: tuple[float, float], path: str, body: str, *, timeout_seconds: float) -> None:
        """POST to the Backstay server. Whatever comes back is an item: `statusCode` and `body`, or `error`.

        path: with `{{ code }}` inside. Both outputs lead on: the second when there was no answer at all.
        """
        self.node(
            name,
            "httpRequest",
            4.2,
            at,
            {
                "method": "POST",
                "url": f"={{{{@:env:backstay.url}}}}{path}",
                "authentication": "genericCredentialType",
                "genericAuthType": "httpHeaderAuth",
                "sendBody": True,
                "specifyBody": "json",
                "jsonBody": expression(body),
                "options": {
                    "timeout": int(timeout_seconds * 1000),
                    "response": {"response": {"fullResponse": True, "neverError": True, "responseFormat": "json"}},
                },
            },
            onError="continueErrorOutput",
            credentials={
                "httpHeaderAuth": {
                    "id": "{{@:env:credentials.backstay.id}}",
                    "name": "{{@:env:credentials.backstay.name}}",
                }
            },
        )


def object_of(fields: Mapping[str, str]) -> str:
    """An object literal: name → code."""
    inside = ", ".join(f"{json.dumps(name)}: {code}" for name, code in fields.items())
    return f"{{ {inside} }}"
