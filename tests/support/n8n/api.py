"""n8n's public API as a real server (1.123) answers it, for tests without one: a small HTTP server on loopback.

What it says is recorded from the real one, word for word where a message matters; `test_n8n_api.py` holds both to the
same claims. `major=2` differs in one thing: what others call may be published there.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

KEY = "n8n_api_0123456789abcdef"
WORKFLOW = ("name", "nodes", "connections", "settings")
READ_ONLY = ("id", "active", "createdAt", "updatedAt", "tags")
ALSO = ("staticData", "shared", "activeVersion")
NODE = {
    *("id", "name", "webhookId", "disabled", "notesInFlow", "notes", "type", "typeVersion", "executeOnce"),
    *("alwaysOutputData", "retryOnFail", "maxTries", "waitBetweenTries", "continueOnFail", "onError", "position"),
    *("parameters", "credentials", "createdAt", "updatedAt"),
}
SETTINGS = {
    *("saveExecutionProgress", "saveManualExecutions", "saveDataErrorExecution", "saveDataSuccessExecution"),
    *("executionTimeout", "errorWorkflow", "timezone", "executionOrder", "callerPolicy", "callerIds"),
    *("timeSavedPerExecution", "availableInMCP"),
}
ADDED = {"callerPolicy": "workflowsFromSameOwner", "availableInMCP": False}
STARTS_NOTHING = ("executeWorkflowTrigger", "errorTrigger", "manualTrigger")
HTML = "<!DOCTYPE html>\n<html><body><pre>Cannot GET /</pre></body></html>\n"


class N8nApi:
    """`with N8nApi() as api:` then `api.url` and `KEY`. `api.say(…)` puts an answer before the next ones."""

    def __init__(self, major=1, tells_version=False):
        self.major = major
        self.tells_version = tells_version
        self.workflows = {}
        self.credentials = {}
        #: Method and path of everything that was asked.
        self.asked = []
        self._before = []
        #: Called when a request was carried out and before it is answered: its method and path.
        self.carried_out = lambda _method, _path: None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

        for method in ("GET", "POST", "PUT", "DELETE"):
            setattr(Handler, f"do_{method}", self._handler())
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handler(self):
        return lambda handler: self._answer(handler)  # noqa: PLW0108 - a function, so that it becomes a method

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def say(self, status, body="", *, times=1, after=False, **headers):
        """The next `times` requests are answered so; status 0 hangs up. `after`: the request is carried out first."""
        self._before += [(status, body, headers, after)] * times

    # ── one request ──

    def _answer(self, handler):
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        method, parts = handler.command, urlsplit(handler.path)
        self.asked.append((method, parts.path))
        before = self._before.pop(0) if self._before else None
        if before is None or before[3]:
            status, body = self._decide(method, parts, handler.headers, raw)
            self.carried_out(method, parts.path)
        headers = {}
        if before is not None:
            status, body, headers, _ = before
        if status == 0:
            handler.close_connection = True
            handler.connection.close()
            return
        text = body if isinstance(body, str) else json.dumps(body)
        kind = "application/json; charset=utf-8" if not isinstance(body, str) else "text/html; charset=utf-8"
        said = text.encode()
        handler.send_response(status)
        for name, value in {"content-type": kind, "content-length": len(said), **headers}.items():
            handler.send_header(name.replace("_", "-"), str(value))
        handler.end_headers()
        handler.wfile.write(said)

    def _decide(self, method, parts, headers, raw):
        if parts.path == "/rest/settings" and self.tells_version:
            return 200, {"data": {"versionCli": {1: "1.123.81", 2: "2.41.0"}[self.major]}}
        if not parts.path.startswith("/api/v1/"):
            return 404, HTML
        if not headers.get("X-N8N-API-KEY"):
            return 401, {"message": "'X-N8N-API-KEY' header required"}
        if headers["X-N8N-API-KEY"] != KEY:
            return 401, {"message": "unauthorized"}
        body = json.loads(raw) if raw else None
        match method, parts.path.removeprefix("/api/v1/").split("/"):
            case "GET", ["workflows"]:
                return self._list(parse_qs(parts.query))
            case "POST", ["workflows"]:
                return self._wrong(body) or (200, self._create(body))
            case "GET" | "PUT" | "DELETE", ["workflows", workflow]:
                return self._one(method, workflow, body)
            case "POST", ["workflows", workflow, "activate"]:
                return self._activate(workflow)
            case "POST", ["credentials"]:
                return self._credential(body)
            case "DELETE", ["credentials", credential]:
                found = self.credentials.pop(credential, None)
                return (200, found) if found else (404, {"message": "Not Found"})
            case "GET", ["credentials"]:
                return 405, {"message": "GET method not allowed"}
            case "GET", ["credentials", "schema", "redis"]:
                return 200, REDIS_SCHEMA
            case "GET", ["executions"]:
                return 200, {"data": [], "nextCursor": None}
            case _:
                return 404, {"message": "not found"}

    # ── workflows ──

    def _list(self, query):
        limit = int(query.get("limit", ["100"])[0])
        offset = 0
        if "cursor" in query:
            offset = json.loads(base64.b64decode(query["cursor"][0]))["offset"]
        found = [w for w in self.workflows.values() if query.get("name", [""])[0] in w["name"]]
        page, more = found[offset : offset + limit], offset + limit < len(found)
        cursor = json.dumps({"limit": limit, "offset": offset + limit, "numberOfTotalRecords": len(found)})
        return 200, {"data": page, "nextCursor": base64.b64encode(cursor.encode()).decode() if more else None}

    def _wrong(self, body):
        def said(message):
            return 400, {"message": f"request/body{message}"}

        for field in READ_ONLY:
            if field in body:
                return said(f"/{field} is read-only")
        if set(body) - set(WORKFLOW) - set(ALSO):
            return said(" must NOT have additional properties")
        for field in WORKFLOW:
            if field not in body:
                return said(f" must have required property '{field}'")
        for place, node in enumerate(body["nodes"]):
            if set(node) - NODE:
                return said(f"/nodes/{place} must NOT have additional properties")
        if set(body["settings"]) - SETTINGS:
            return said("/settings must NOT have additional properties")
        return None

    def _create(self, body):
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        made = {
            **body,
            "nodes": [{**node, "id": node.get("id") or str(uuid.uuid4())} for node in body["nodes"]],
            "settings": {**ADDED, **body["settings"]},
            "active": False,
            "versionId": str(uuid.uuid4()),
            "id": secrets.token_hex(8),
            "description": None,
            "staticData": None,
            "meta": None,
            "pinData": None,
            "activeVersionId": None,
            "updatedAt": now,
            "createdAt": now,
            "isArchived": False,
            "versionCounter": 1,
            "triggerCount": 0,
        }
        self.workflows[made["id"]] = made
        return made

    def edit(self, workflow, **fields):
        """Simulate a user who saves the workflow in the editor."""
        self.workflows[workflow].update(fields, versionId=str(uuid.uuid4()))

    def _one(self, method, workflow, body):
        if method == "PUT" and (wrong := self._wrong(body)):
            return wrong
        found = self.workflows.get(workflow)
        if found is None:
            return 404, {"message": "Not Found"}
        if method == "PUT":
            fresh = self._create(body)
            del self.workflows[fresh["id"]]
            kept = ("id", "createdAt", "active", "activeVersionId")
            found.update({k: v for k, v in fresh.items() if k not in kept}, versionCounter=found["versionCounter"] + 1)
        if method == "DELETE":
            del self.workflows[workflow]
        return 200, found

    def _activate(self, workflow):
        found = self.workflows.get(workflow)
        if found is None:
            return 404, {"message": "Not Found"}
        kinds = [node["type"].rpartition(".")[2] for node in found["nodes"]]
        called = self.major > 1 and {"executeWorkflowTrigger", "errorTrigger"} & set(kinds)
        if not called and not any(
            k.lower().endswith(("trigger", "webhook")) and k not in STARTS_NOTHING for k in kinds
        ):
            message = (
                f'Workflow "{found["name"]}" (ID: {workflow}) has no node to start the workflow - at least one trigger,'
                " poller or webhook node is required"
            )
            return 400, {"message": message}
        found.update(active=True, activeVersionId=found["versionId"])
        return 200, found

    # ── credentials ──

    def _credential(self, body):
        if body["type"] not in ("redis", "httpHeaderAuth"):
            return 400, {"message": "req.body.type is not a known type"}
        data = body["data"]
        if body["type"] == "redis" and not isinstance(data.get("port", 0), int):
            # The real one may quote a value, and so does this.
            return 400, {"message": f"request.body.data is not of a type(s) number: {json.dumps(data)}"}
        if body["type"] == "redis" and "ssl" not in data:
            return 400, {"message": 'request.body.data requires property "disableTlsVerification"'}
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        made = {
            "name": body["name"],
            "type": body["type"],
            "id": secrets.token_hex(8),
            "updatedAt": now,
            "createdAt": now,
            "isManaged": False,
            "isGlobal": False,
        }
        self.credentials[made["id"]] = made
        return 200, made


REDIS_SCHEMA = {
    "additionalProperties": False,
    "type": "object",
    "properties": {
        "password": {"type": "string"},
        "user": {"type": "string"},
        "host": {"type": "string"},
        "port": {"type": "number"},
        "database": {"type": "number"},
        "ssl": {"type": "boolean"},
        "disableTlsVerification": {"type": "boolean"},
    },
    "required": [],
}
