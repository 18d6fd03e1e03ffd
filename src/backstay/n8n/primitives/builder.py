"""A builder for the primitives' workflows: a method for each kind of node that they need, and for connections."""

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
    """Return a text as a JavaScript string literal."""
    return nodes.js_string(text)


def expression(code: str) -> str:
    """Return code as a parameter value that n8n evaluates."""
    if "}}" in code:
        raise ValueError(f"}}}} would end the n8n expression early: {code}")
    return f"={{{{ {code} }}}}"


def first(node: str) -> str:
    """Return JavaScript that reads the JSON of the first item that the node `node` emitted in its latest run."""
    return f"$({js(node)}).first().json"


def _place(at: tuple[float, float]) -> list[int]:
    column, row = at
    return [int(column * _WIDE), int(row * _HIGH)]


class WorkflowBuilder:
    """Collects the nodes and connections of one workflow. Building it again gives the same node ids: an id depends only
    on `id_namespace` and the node's name.
    """

    def __init__(self, id_namespace: str) -> None:
        self._id_namespace = id_namespace
        self.nodes: list[JsonObject] = []
        self.connections: JsonObject = {}
        self.settings: JsonObject = {"executionOrder": "v1"}

    # ── connections ──

    def chain(self, *names: str) -> None:
        """Connect each node's first output to the next node."""
        for one, two in pairwise(names):
            self.connect(one, two)

    def fork(self, name: str, yes: str, no: str) -> None:
        """Connect an If node's true and false outputs."""
        self.connect(name, yes)
        self.connect(name, no, output=1)

    def connect(self, name: str, target: str, *, output: int = 0, index: int = 0) -> None:
        outputs = self.connections.setdefault(name, {"main": []})["main"]
        while len(outputs) <= output:
            outputs.append([])
        outputs[output].append(nodes.link_to(target, index))

    # ── nodes ──

    def node(
        self, name: str, kind: str, version: float, at: tuple[float, float], parameters: JsonObject, **more: Any
    ) -> None:
        self.nodes.append(nodes.node(self._id_namespace, name, kind, version, parameters, _place(at), **more))

    def called_trigger(self, name: str, at: tuple[float, float], inputs: Mapping[str, str]) -> None:
        """Add the trigger that runs when another workflow calls this one, with its inputs by name and type."""
        values = [{"name": field, "type": kind} for field, kind in inputs.items()]
        self.node(name, "executeWorkflowTrigger", 1.1, at, {"workflowInputs": {"values": values}})

    def error_trigger(self, name: str, at: tuple[float, float]) -> None:
        """Add the trigger that runs when a workflow fails whose error workflow is this one."""
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
        """Add an Edit Fields node. `fields` maps each field name to its type and code; `keep`: also keep the item's
        other fields.
        """
        rows = [
            {
                "id": nodes.node_id(self._id_namespace, f"{name}/{field}"),
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
        """Add an Edit Fields node that sets the fields in `rows`, which `literal_row` and `code_row` return. `keep`:
        also keep the item's other fields.
        """
        parameters = {"assignments": {"assignments": rows}, "includeOtherFields": keep, "options": {}}
        self.node(name, "set", 3.4, at, parameters, **more)

    def literal_row(self, name: str, field: str, kind: str, value: str) -> JsonObject:
        """Return a row for `rows` (an Edit Fields node): it sets a field to a literal text."""
        return {"id": nodes.node_id(self._id_namespace, f"{name}/{field}"), "name": field, "type": kind, "value": value}

    def code_row(self, name: str, field: str, kind: str, code: str) -> JsonObject:
        """Return a row for `rows` (an Edit Fields node): it sets a field to the value of JavaScript code."""
        return self.literal_row(name, field, kind, expression(code))

    def condition(self, name: str, at: tuple[float, float], code: str) -> None:
        """Add an If node; the first output is taken when the code is true."""
        expression(code)
        self.nodes.append(nodes.condition(self._id_namespace, name, code, _place(at)))

    def stop_and_error(self, name: str, at: tuple[float, float], code: str) -> None:
        """Add a Stop and Error node; the code computes its message."""
        expression(code)
        self.nodes.append(nodes.stop_and_error(self._id_namespace, name, code, _place(at)))

    def uuid(self, name: str, at: tuple[float, float], field: str) -> None:
        """Add a Crypto node that puts a random UUID into a field. It is a node of its own because expressions and Code
        nodes have no `crypto`. The execution's id would not be unique enough, because one execution may acquire several
        locks.
        """
        self.node(name, "crypto", 1, at, {"action": "generate", "dataPropertyName": field, "encodingType": "uuid"})

    def wait(self, name: str, at: tuple[float, float], seconds: float | str, **more: Any) -> None:
        """Add a Wait node of less than 65 s. n8n suspends the execution for a longer wait, and the caller of a
        suspended sub-workflow does not get its output.
        """
        self.node(name, "wait", 1.1, at, {"resume": "timeInterval", "amount": seconds, "unit": "seconds"}, **more)

    def redis(self, name: str, at: tuple[float, float], operation: str, key: str, **parameters: Any) -> None:
        """Add a Redis node with one command: `get` (with propertyName), `incr`, `set`, `delete`."""
        self.node(
            name,
            "redis",
            1,
            at,
            {"operation": operation, "key": expression(key), **parameters},
            credentials={"redis": {"id": "{{@:env:credentials.redis.id}}", "name": "{{@:env:credentials.redis.name}}"}},
        )

    def http(self, name: str, at: tuple[float, float], path: str, body: str, *, timeout_seconds: float) -> None:
        """Add a POST request to the Backstay server. A response of any status is an item with `statusCode` and `body`
        on the first output; without a response, an item with `error` is on the second. Connect both outputs.

        `path` may contain n8n expressions, `{{ … }}` with JavaScript.
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
    """Return a JavaScript object literal. `fields` maps each property name to the code of its value."""
    inside = ", ".join(f"{json.dumps(name)}: {code}" for name, code in fields.items())
    return f"{{ {inside} }}"
