"""Woven workflows in the lab: with the primitives beside them, their placeholders resolved, their lock looked at."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from lab.stage import hydrated

from backstay.interop.n8n_wire import keys as n8n_keys
from backstay.n8n.model import Workflow
from backstay.n8n.primitives import KEYS, primitive

CORPUS = Path(__file__).parent / "corpus"
KEY = "work"
BODY = f"{KEY}_body"
RETRY = f"{KEY}_retry"
#: Called by some of the corpus.
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


class Desk:
    """One engine, one transport, and a scope that nobody else uses. `exists` says whether a lock's key is there."""

    def __init__(self, stage, exists):
        self.stage = stage
        self.exists = exists
        self.scope = f"corpus-{secrets.token_hex(4)}"
        self.settings = stage.settings
        self.settings["workflows"] |= {
            KEY: {"id": KEY},
            BODY: {"id": BODY},
            RETRY: {"id": RETRY},
            "tidy": {"id": "error_handler_lo"},
        }
        self.settings["lockScopes"] = [self.scope]
        self.primitives = [hydrated(primitive(key, stage.transport), key, self.settings) for key in KEYS]

    def corpus(self, name):
        text = (CORPUS / f"{name}.json").read_bytes().decode().replace("@scope@", self.scope)
        return Workflow.parse(text, source=name)

    def start(self, workflow, others=None, **options):
        """A workflow beside what it calls."""
        both = {KEY: workflow, **(others or {})}
        built = [hydrated(one, key, self.settings) for key, one in both.items()]
        credentials = self.stage.credentials
        return self.stage.lab.start([*built, HELPER, *self.primitives], KEY, credentials=credentials, **options)

    def run(self, workflow, others=None, **options):
        return self.start(workflow, others, **options).result()

    def held(self, scope=None):
        """Whether anything is left of the lock."""
        scope = scope or self.scope
        keys = [n8n_keys.lock_key(scope), n8n_keys.meta_key(scope)] if self.stage.transport == "redis" else [scope]
        return any(self.exists(key) for key in keys)


def seen(execution, names):
    """What each of these nodes gave in each of its runs: items, binary data, pairing. What a probe saw is left out."""
    return {
        name: [[[_plain(item) for item in output or ()] for output in run.outputs] for run in execution.runs[name]]
        for name in names
        if name in execution.runs
    }


def _plain(item):
    shown = json.loads(json.dumps(item))
    for key in ("metadata", "index"):  # of the call, not of what was sent
        shown.pop(key, None)
    if isinstance(shown.get("json"), dict):
        shown["json"].pop("held", None)
    return shown


def probes(execution):
    """What every probe saw of the lock, in order."""
    return [item["held"] for run in execution.order() if run.node.startswith("Probe") for item in run.items]
