"""Run patched workflows in the lab, with hydrated primitives, and inspect their locks."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from lab.runner import hydrated

from backstay.interop.n8n_wire import keys as n8n_keys
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.primitives import KEYS, primitive

CORPUS = Path(__file__).parent / "corpus"
KEY = "work"
BODY = f"{KEY}_body"
RETRY = f"{KEY}_retry"
#: A sub-workflow that some corpus workflows call.
HELPER = {
    "id": "helper",
    "name": "Helper",
    "nodes": [
        {
            "id": "1",
            "name": "Called",
            "type": "n8n-nodes-base.executeWorkflowTrigger",
            "typeVersion": 1.1,
            "position": [0, 0],
            "parameters": {"inputSource": "passthrough"},
        },
        {
            "id": "2",
            "name": "Help",
            "type": "n8n-nodes-base.set",
            "typeVersion": 3.3,
            "position": [220, 0],
            "parameters": {"mode": "raw", "jsonOutput": "={{ { helped: $json.n } }}", "options": {}},
        },
    ],
    "connections": {"Called": {"main": [[{"node": "Help", "type": "main", "index": 0}]]}},
    "settings": {"executionOrder": "v1"},
}


class LabClient:
    """One engine, one transport and a unique scope. `exists(key)` returns whether a key of the lock exists."""

    def __init__(self, runner, exists):
        self.runner = runner
        self.exists = exists
        self.scope = f"corpus-{secrets.token_hex(4)}"
        self.settings = runner.settings
        self.settings["workflows"] |= {
            KEY: {"id": KEY},
            BODY: {"id": BODY},
            RETRY: {"id": RETRY},
            "tidy": {"id": "error_handler_lo"},
        }
        self.settings["lockScopes"] = [self.scope]
        self.primitives = [hydrated(primitive(key, runner.transport), key, self.settings) for key in KEYS]

    def corpus(self, name):
        text = (CORPUS / f"{name}.json").read_bytes().decode().replace("@scope@", self.scope)
        return N8nWorkflow.parse(text, source=name)

    def start(self, workflow, others=None, **options):
        """Start a workflow together with the workflows that it calls."""
        both = {KEY: workflow, **(others or {})}
        built = [hydrated(one, key, self.settings) for key, one in both.items()]
        credentials = self.runner.credentials
        return self.runner.lab.start([*built, HELPER, *self.primitives], KEY, credentials=credentials, **options)

    def run(self, workflow, others=None, **options):
        return self.start(workflow, others, **options).result()

    def held(self, scope=None):
        """Return whether any key of the lock exists."""
        scope = scope or self.scope
        keys = [n8n_keys.lock_key(scope), n8n_keys.meta_key(scope)] if self.runner.transport == "redis" else [scope]
        return any(self.exists(key) for key in keys)


def seen(execution, names):
    """Return the output of each of these nodes per run: items, binary data, pairing; without the probes' lock state."""
    return {
        name: [[[_plain(item) for item in output or ()] for output in run.outputs] for run in execution.runs[name]]
        for name in names
        if name in execution.runs
    }


def _plain(item):
    shown = json.loads(json.dumps(item))
    for key in ("metadata", "index"):  # they describe the call, not the item
        shown.pop(key, None)
    if isinstance(shown.get("json"), dict):
        shown["json"].pop("held", None)
    return shown


def probes(execution):
    """Return the lock state that each probe saw, in order."""
    return [item["held"] for run in execution.order() if run.node.startswith("Probe") for item in run.items]
