"""A workflow with a lock, deployed to a full n8n server."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from itertools import pairwise

from lab.runner import hydrated, node

from backstay.interop.n8n_wire import keys
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LockOptions, add_lock
from backstay.n8n.primitives import KEYS, primitive
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import N8nClient
from backstay.n8n.sync.create_placeholders import create_placeholders
from backstay.n8n.sync.state import SyncState

WORK = "work"
WITHIN = 120.0


class DeployedWorkflow:
    """A patched workflow behind a webhook, pushed with its primitives to a real n8n."""

    def __init__(self, server, transport, credential, body, url="", response_mode="lastNode", **options):
        self.server = server
        self.client = N8nClient(server.url, server.key)
        self.scope = f"full-{secrets.token_hex(4)}"
        self.path = f"hook-{secrets.token_hex(4)}"
        name, kind, data = credential
        self.credential = self.client.create_credential(name, kind, data)
        parameters = {"path": self.path, "httpMethod": "POST", "responseMode": response_mode, "options": {}}
        hook = node("Hook", "webhook", 2, parameters, webhookId=self.path)
        names = ["Hook", *(one["name"] for one in body)]
        lines = {a: {"main": [[{"node": b, "type": "main", "index": 0}]]} for a, b in pairwise(names)}
        plain = N8nWorkflow(
            {"name": WORK, "nodes": [hook, *body], "connections": lines, "settings": {"executionOrder": "v1"}}
        )
        patched = add_lock(plain, WORK, LockOptions(self.scope, 600, 60, transport=transport, **options))
        self.wiring = patched.wiring
        templates = {**{key: primitive(key, transport) for key in KEYS}, **patched.others, WORK: patched.workflow}
        self.state = SyncState()
        created = create_placeholders(self.client, templates, self.state)
        settings = {
            "workflows": {change.key: {"id": change.id} for change in created},
            "credentials": {name: {"id": self.credential, "name": name}},
            "backstay": {"url": url},
            "lockScopes": [self.scope],
        }
        built = {key: N8nWorkflow(hydrated(one, key, settings)) for key, one in templates.items()}
        sync.push(self.client, built, self.state)
        self.id = self.state.workflows[WORK].id
        self.client.publish(self.id)  # activates its webhook; push leaves that to the operator

    def hit(self, timeout=WITHIN):
        return self.server.call("POST", f"/webhook/{self.path}", {"n": 1}, timeout)

    def executions(self, status="", of=WORK):
        return self.client.executions(workflow_id=self.state.workflows[of].id, status=status, limit=50)

    def shown(self, name):
        """Return ids and states of the executions that the editor lists for a workflow, oldest first."""
        listed = self.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
        ids = {known.id for known in self.state.workflows.values()}
        found = [one for one in listed if one["workflowName"] == name and one["workflowId"] in ids]
        return sorted(((one["id"], one["status"]) for one in found), key=lambda one: int(one[0]))

    def output_of(self, execution, name):
        """Return the first output item of a node."""
        listed = self.client._call("GET", f"/executions/{execution}", query={"includeData": "true"})
        return listed["data"]["resultData"]["runData"][name][0]["data"]["main"][0][0]["json"]

    def close(self):
        for known in self.state.workflows.values():
            self.client.delete(known.id)
        self.client.delete_credential(self.credential)


@contextmanager
def deploying_redis(server, backstay_redis):
    made = []

    def make(*body, **options):
        data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
        made.append(DeployedWorkflow(server, "redis", ("redis", "redis", data), body, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@contextmanager
def deploying_http(server, backstay_server):
    made = []

    def make(*body, **options):
        url, token = backstay_server
        data = {"name": "Authorization", "value": f"Bearer {token}"}
        made.append(DeployedWorkflow(server, "http", ("backstay", "httpHeaderAuth", data), body, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def is_free(redis, scope):
    return not redis.exists(keys.lock_key(scope), keys.meta_key(scope))


CLEAN_UP = "error_handler_lock_cleanup"
LOCKED_BODY = f"{WORK} (locked body)"
