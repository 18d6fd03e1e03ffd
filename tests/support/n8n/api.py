"""A fake of n8n's public API: a small HTTP server on loopback that responds like a real server (1.123).

Its responses were recorded from the real server, and its messages are verbatim where code depends on them.
`test_n8n_api.py` runs the same tests against both. With `major=2` sub-workflows may be published, too.
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
    """`with N8nApi() as api:` starts the server at `api.url`; the API key is `KEY`. `api.respond(…)` sets the next
    responses.
    """

    def __init__(self, major=1, reports_version=False):
        self.major = major
        self.reports_version = reports_version
        self.workflows = {}
        self.credentials = {}
        #: The method and path of each request.
        self.requests = []
        self._next_responses = []
        #: Called with method and path after a request was applied and before its response is sent.
        self.on_applied = lambda _method, _path: None

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
        return lambda handler: self._handle(handler)  # noqa: PLW0108 - only a function becomes a method of Handler

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def respond(self, status, body="", *, times=1, after=False, **headers):
        """Set the response to the next `times` requests; status 0 closes the connection. The requests are not applied,
        except with `after`.
        """
        self._next_responses += [(status, body, headers, after)] * times

    # ── one request ──

    def _handle(self, handler):
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        method, parts = handler.command, urlsplit(handler.path)
        self.requests.append((method, parts.path))
        preset = self._next_responses.pop(0) if self._next_responses else None
        if preset is None or preset[3]:
            status, body = self._apply(method, parts, handler.headers, raw)
            self.on_applied(method, parts.path)
        headers = {}
        if preset is not None:
            status, body, headers, _ = preset
        if status == 0:
            handler.close_connection = True
            handler.connection.close()
            return
        text = body if isinstance(body, str) else json.dumps(body)
        kind = "application/json; charset=utf-8" if not isinstance(body, str) else "text/html; charset=utf-8"
        content = text.encode()
        handler.send_response(status)
        for name, value in {"content-type": kind, "content-length": len(content), **headers}.items():
            handler.send_header(name.replace("_", "-"), str(value))
        handler.end_headers()
        handler.wfile.write(content)

    def _apply(self, method, parts, headers, raw):
        if parts.path == "/rest/settings" and self.reports_version:
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
                return self._find_error(body) or (200, self._create(body))
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

    def _find_error(self, body):
        """Return the response to an invalid workflow, or None."""

        def refuse(message):
            return 400, {"message": f"request/body{message}"}

        for field in READ_ONLY:
            if field in body:
                return refuse(f"/{field} is read-only")
        if set(body) - set(WORKFLOW) - set(ALSO):
            return refuse(" must NOT have additional properties")
        for field in WORKFLOW:
            if field not in body:
                return refuse(f" must have required property '{field}'")
        for nth, node in enumerate(body["nodes"]):
            if set(node) - NODE:
                return refuse(f"/nodes/{nth} must NOT have additional properties")
        if set(body["settings"]) - SETTINGS:
            return refuse("/settings must NOT have additional properties")
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
        if method == "PUT" and (refusal := self._find_error(body)):
            return refusal
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
            # The real server may quote the value, which could be a secret.
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
