"""Run hydrated primitives in the lab, called by a workflow of the test."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from backstay.n8n.model import N8nWorkflow
from backstay.n8n.primitives import KEYS, Transport, primitive
from backstay.n8n.workspace.hydrate import Hydration
from lab.process import Lab, Run
from lab.records import Execution

#: Cache of hydrated templates by (template, key, settings); tests build the same ones repeatedly.
_BUILT: dict[tuple[str, str, str], str] = {}


def hydrated(template: N8nWorkflow, key: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template with its placeholders resolved and its id set."""
    same = (json.dumps(template.data), key, json.dumps(settings))
    if same not in _BUILT:
        _BUILT[same] = json.dumps(_hydrated(template, key, settings))
    built: dict[str, Any] = json.loads(_BUILT[same])
    return built


def _hydrated(template: N8nWorkflow, key: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    hydration = Hydration("test", key, f"{key}.template.json", settings, _no_file, "test.yml")
    made = N8nWorkflow.parse(hydration.template(template.text()), source=key)
    assert not hydration.warnings
    return {"id": settings["workflows"][key]["id"], **made.data}


def _no_file(path: str) -> str:
    raise AssertionError(f"a primitive includes no file: {path}")


@dataclasses.dataclass(slots=True)
class PrimitiveRunner:
    """Runs workflows together with the primitives of one transport in one engine."""

    lab: Lab
    transport: Transport
    credentials: list[dict[str, Any]]
    url: str = ""
    scopes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "workflows": {key: {"id": key[:16]} for key in KEYS},
            "credentials": {one["id"]: {"id": one["id"], "name": one["id"]} for one in self.credentials},
            "backstay": {"url": self.url},
            "lockScopes": list(self.scopes),
        }

    def primitives(self) -> list[dict[str, Any]]:
        return [hydrated(primitive(key, self.transport), key, self.settings) for key in KEYS]

    def call(self, key: str, **inputs: Any) -> Execution:
        """Call a primitive and return the caller's execution, which has the primitive's items or failure."""
        return self.begin(key, **inputs).result()

    def begin(self, key: str, **inputs: Any) -> Run:
        return self.lab.start(
            [caller(key[:16], inputs), *self.primitives()], items=[{"json": {}}], credentials=self.credentials
        )

    def run(self, workflow: dict[str, Any], **options: Any) -> Execution:
        return self.lab.run([workflow, *self.primitives()], credentials=self.credentials, **options)

    def start(self, workflow: dict[str, Any], **options: Any) -> Run:
        return self.lab.start([workflow, *self.primitives()], credentials=self.credentials, **options)


def node(name: str, kind: str, version: float, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "type": f"n8n-nodes-base.{kind}",
        "typeVersion": version,
        "position": [0, 0],
        "parameters": parameters,
        **more,
    }


def calling(name: str, workflow_id: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an Execute Workflow node with explicit inputs."""
    parameters = {
        "workflowId": {"__rl": True, "mode": "id", "value": workflow_id},
        "workflowInputs": {"mappingMode": "defineBelow", "value": dict(inputs), "matchingColumns": [], "schema": []},
        "mode": "once",
        "options": {},
    }
    return node(name, "executeWorkflow", 1.2, parameters)


def chain(name: str, *nodes: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return a workflow whose nodes form a chain after a trigger."""
    names = ["Start", *(one["name"] for one in nodes)]
    lines = {one: {"main": [[{"node": two, "type": "main", "index": 0}]]} for one, two in pairwise(names)}
    trigger = node("Start", "manualTrigger", 1, {})
    settings = {"executionOrder": "v1", **settings}
    return {"id": name, "name": name, "nodes": [trigger, *nodes], "connections": lines, "settings": settings}


def caller(workflow_id: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return chain("caller", calling("Call", workflow_id, inputs))
