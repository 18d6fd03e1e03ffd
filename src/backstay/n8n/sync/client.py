"""A client of n8n's public API for workflows and credentials, with actionable error messages.

A request that must not happen twice (a create) is resent only when the first attempt certainly never arrived; other
requests are idempotent and are retried. API keys and secrets never appear in messages. Each method changes only what
its name says; only `publish` activates anything.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from backstay.engine.jitter import RANDOM
from backstay.errors import ConfigError, N8nRefused, N8nUnreachable
from backstay.n8n.sync.transport import HttpResponse, NotSent, Transport, urlopen

TIMEOUT = 30.0
#: Retries after the first attempt, for requests that may be repeated.
RETRIES = 4
#: Seconds before the first retry; doubles each time, with jitter.
PAUSE = 0.5
LONGEST_PAUSE = 30.0
PAGE = 100
#: The largest number of pages that are read, in case a server returns pages without end.
MOST_PAGES = 1000
#: The fields that POST and PUT accept; n8n rejects a workflow with any other field.
FIELDS = ("name", "nodes", "connections", "settings")
#: Gateway errors of a busy or restarting server.
TRANSIENT = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True)
class RemoteWorkflow:
    """A workflow as n8n returns it. `data` is the whole response."""

    data: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.data.get("id", ""))

    @property
    def name(self) -> str:
        return str(self.data.get("name", ""))

    @property
    def active(self) -> bool:
        return self.data.get("active") is True

    @property
    def version_id(self) -> str:
        return str(self.data.get("versionId") or "")

    @property
    def is_published(self) -> bool:
        """Whether the saved version is the published one, which other workflows run when they call this one."""
        if "activeVersionId" not in self.data:
            return self.active
        return bool(self.version_id) and self.data["activeVersionId"] == self.version_id

    @property
    def is_archived(self) -> bool:
        return self.data.get("isArchived") is True


class N8nClient:
    """A connection to one n8n server. `transport` and `sleep` are replaceable for tests."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        transport: Transport = urlopen,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        address = check_url(base_url)
        if not api_key:
            raise ConfigError("n8n needs an API key: create one in n8n under Settings, n8n API")
        if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ConfigError("the API key contains invalid characters: check that only the key was copied")
        #: The server's URL without the API's path (`/api/v1`).
        self.url = address
        self._headers = {"X-N8N-API-KEY": api_key, "Accept": "application/json", "User-Agent": "backstay-n8n"}
        self._timeout = timeout
        self._retries = retries
        self._transport = transport
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"<N8nClient {self.url}>"

    # ── workflows ──

    def workflows(self, *, name: str = "") -> Iterator[RemoteWorkflow]:
        """Yield all workflows, page by page."""
        query: dict[str, Any] = {"limit": PAGE, "excludePinnedData": "true"}
        if name:
            query["name"] = name
        for _ in range(MOST_PAGES):
            page = self._call("GET", "/workflows", query=query)
            yield from map(RemoteWorkflow, self._read_list(page))
            cursor = page.get("nextCursor")
            if not cursor:
                return
            query["cursor"] = cursor
        raise N8nRefused(f"{self.url} returned {MOST_PAGES} pages without an end")

    def workflow(self, workflow_id: str) -> RemoteWorkflow | None:
        """Return the workflow; None when it does not exist or this API key may not see it."""
        try:
            return RemoteWorkflow(self._call("GET", f"/workflows/{quote(workflow_id, safe='')}", what=workflow_id))
        except N8nRefused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def create(self, workflow: Mapping[str, Any]) -> RemoteWorkflow:
        """Create a workflow. n8n chooses the id."""
        body = {field: workflow[field] for field in FIELDS}
        return RemoteWorkflow(
            self._call("POST", "/workflows", body=body, may_repeat=False, what=str(workflow.get("name", "")))
        )

    def update(self, workflow_id: str, workflow: Mapping[str, Any]) -> RemoteWorkflow:
        """Replace a workflow's content."""
        body = {field: workflow[field] for field in FIELDS}
        path = f"/workflows/{quote(workflow_id, safe='')}"
        return RemoteWorkflow(self._call("PUT", path, body=body, what=str(workflow.get("name", ""))))

    def delete(self, workflow_id: str) -> None:
        """Delete a workflow. A missing one counts as success."""
        try:
            self._call("DELETE", f"/workflows/{quote(workflow_id, safe='')}", what=workflow_id)
        except N8nRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def publish(self, workflow_id: str) -> RemoteWorkflow:
        """On n8n 2.x, publish the saved version, so that calls run it. On 1.x this activates the workflow's
        triggers.
        """
        path = f"/workflows/{quote(workflow_id, safe='')}/activate"
        return RemoteWorkflow(self._call("POST", path, body={}, what=workflow_id))

    # ── credentials: n8n's API cannot list them, so the caller must store their ids ──

    def create_credential(self, name: str, kind: str, data: Mapping[str, Any]) -> str:
        """Create a credential and return its id."""
        body = {"name": name, "type": kind, "data": dict(data)}
        created = self._call(
            "POST", "/credentials", body=body, may_repeat=False, what=f"credential {name!r}", secret=True
        )
        found = created.get("id")
        if not isinstance(found, str) or not found:
            raise self._unexpected("a credential id")
        return found

    def delete_credential(self, credential_id: str) -> None:
        """Delete a credential. A missing one counts as success."""
        try:
            self._call("DELETE", f"/credentials/{quote(credential_id, safe='')}", what=credential_id)
        except N8nRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def credential_schema(self, kind: str) -> dict[str, Any]:
        """Return the fields of a credential type with their types."""
        return self._call("GET", f"/credentials/schema/{quote(kind, safe='')}", what=f"credential type {kind!r}")

    # ── executions ──

    def executions(self, *, workflow_id: str = "", status: str = "", limit: int = 20) -> list[dict[str, Any]]:
        """Return the latest executions, optionally of one workflow or status."""
        query: dict[str, Any] = {"limit": limit}
        if workflow_id:
            query["workflowId"] = workflow_id
        if status:
            query["status"] = status
        return self._read_list(self._call("GET", "/executions", query=query))

    def retry_execution(self, execution_id: str) -> dict[str, Any]:
        """Retry an execution from its failed node. Earlier nodes, such as one that acquires a lock, do not run
        again.
        """
        path = f"/executions/{quote(execution_id, safe='')}/retry"
        return self._call("POST", path, body={"loadWorkflow": True}, may_repeat=False, what=f"execution {execution_id}")

    # ── server information ──

    def probe(self) -> None:
        """Check that n8n responds and accepts the key. Raise N8nUnreachable or N8nRefused."""
        self._call("GET", "/workflows", query={"limit": 1})

    def major_version(self) -> int:
        """Return n8n's major version; 0 when it does not report one, for example with its editor disabled."""
        try:
            response = self._transport(
                "GET", f"{self.url}/rest/settings", {"Accept": "application/json"}, None, self._timeout
            )
            version = json.loads(response.body)["data"]["versionCli"] if response.status == HTTPStatus.OK else ""
            return int(str(version).partition(".")[0])
        except (OSError, NotSent, ValueError, KeyError, TypeError):
            return 0

    # ── requests ──

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        may_repeat: bool = True,
        what: str = "",
        secret: bool = False,
    ) -> dict[str, Any]:
        """Send a request with retries, and return the decoded response. `may_repeat`: the request is idempotent, so it
        is also retried when an earlier attempt may have arrived.
        """
        url = f"{self.url}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        raw = None if body is None else json.dumps(body).encode()
        headers = self._headers if raw is None else {**self._headers, "Content-Type": "application/json"}
        attempt = 0
        while True:
            try:
                response = self._transport(method, url, headers, raw, self._timeout)
            except NotSent as error:
                if attempt >= self._retries:
                    raise N8nUnreachable(f"no n8n responds at {self.url}: {error}") from None
            except (OSError, TimeoutError) as error:
                if not may_repeat:
                    raise N8nUnreachable(
                        f"n8n at {self.url} was sent {what or path} but did not respond: check whether it took effect"
                    ) from None
                if attempt >= self._retries:
                    raise N8nUnreachable(
                        f"n8n at {self.url} did not respond within {self._timeout:g} s: {error}"
                    ) from None
            else:
                if not self._is_retryable(response, may_repeat) or attempt >= self._retries:
                    return self._read(response, what, secret=secret)
                if (pause := retry_after(response)) is not None:
                    if pause > LONGEST_PAUSE:
                        return self._read(response, what, secret=secret)
                    self._sleep(pause)
                    attempt += 1
                    continue
            self._sleep(min(LONGEST_PAUSE, PAUSE * 2**attempt) * RANDOM.uniform(0.5, 1.0))
            attempt += 1

    @staticmethod
    def _is_retryable(response: HttpResponse, may_repeat: bool) -> bool:
        """Whether to send the request again. After a 429 it had no effect; after a gateway's 502 it may have had one,
        so then only idempotent requests are sent again.
        """
        return response.status == HTTPStatus.TOO_MANY_REQUESTS or (may_repeat and response.status in TRANSIENT)

    def _read(self, response: HttpResponse, what: str, *, secret: bool) -> dict[str, Any]:
        if response.status in range(200, 300):
            # A workflow may contain a name with a lone surrogate. msgspec.json would reject the whole response because
            # of it; json accepts it.
            with contextlib.suppress(ValueError, RecursionError):
                return msgspec.convert(json.loads(response.body), dict[str, Any])
            raise self._unexpected("a JSON object")
        raise N8nRefused(self._refusal(response, what, secret=secret), status=response.status)

    def _refusal(self, response: HttpResponse, what: str, *, secret: bool) -> str:
        message, place, status = message_of(response), f"n8n at {self.url}", response.status
        about = f" ({what})" if what else ""
        if status == HTTPStatus.UNAUTHORIZED:
            return f"{place} rejects this API key: create one in n8n under Settings, n8n API"
        if status == HTTPStatus.FORBIDDEN:
            return f"{place}: this API key lacks permission{about}; grant it the scopes for workflows and credentials"
        if status == HTTPStatus.NOT_FOUND and not message:
            return (
                f"{place} has no public API at /api/v1: it is disabled (N8N_PUBLIC_API_DISABLED), the URL belongs to"
                " another program, or n8n is older than 1.0"
            )
        if status == HTTPStatus.NOT_FOUND:
            return f"{place} does not have it{about}, or this key may not see it"
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return f"{place} limits the request rate{about}: try again later"
        if status in range(300, 400):
            return f"{self.url} redirects: use the URL of n8n itself, not of a login page in front of it"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return f"{place} failed with {status}{about}: see its log"
        if secret:  # n8n's message may quote the secret
            return f"{place} rejects {what}: its fields do not match the type; see its schema"
        return f"{place} rejects the request{about}: {message or status}" + hint_of(message)

    def _read_list(self, page: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            return msgspec.convert(page.get("data"), list[dict[str, Any]])
        except msgspec.ValidationError:
            raise self._unexpected("a list") from None

    def _unexpected(self, wanted: str) -> N8nRefused:
        return N8nRefused(f"{self.url} responded without {wanted}: is this an n8n server?", status=200)


def check_url(url: str) -> str:
    """Return the normalized base URL of an n8n server; raise ConfigError when it is not valid."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port that is not a number
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ConfigError("the URL of n8n must start with http:// or https://, as in http://127.0.0.1:5678")
    if parts.username or parts.password:
        raise ConfigError("the URL of n8n must not contain a user and password: n8n authenticates by API key")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/api/v1')}"


def message_of(response: HttpResponse) -> str:
    """Return the error message in an n8n response; empty when the response has no such message, for example because a
    proxy sent it.
    """
    try:
        message = msgspec.json.decode(response.body, type=dict[str, Any]).get("message")
    except msgspec.DecodeError:
        return ""
    return message[:500] if isinstance(message, str) else ""


def hint_of(message: str) -> str:
    """Return a hint for a known error message."""
    if "additional properties" in message:
        return ". The API accepts fewer fields than the editor writes: remove the named field from the template"
    if "no node to start" in message:
        return ". The workflow has no trigger that starts by itself and needs none: other workflows call it"
    return ""


def retry_after(response: HttpResponse) -> float | None:
    """Return how many seconds the Retry-After header asks to wait. The header contains seconds or a date. None when it
    is absent or invalid.
    """
    header = response.headers.get("retry-after", "").strip()
    if header.isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
