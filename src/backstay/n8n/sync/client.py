"""n8n's public API: workflows and credentials, with a key, and with answers that say the way out.

What must not happen twice (a create) is sent again only when nothing of it can have arrived; everything else may be.
Keys and secrets never get into a message. No method changes anything but what its name says: nothing is activated
unless `publish` is called.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from backstay.errors import ConfigError, N8nRefused, N8nUnreachable
from backstay.n8n.sync.transport import Answer, NotSent, Transport, urlopen

TIMEOUT = 30.0
#: Attempts after the first, where another one is safe.
RETRIES = 4
#: The pause before the first of them; it doubles, with some chance in it.
PAUSE = 0.5
LONGEST_PAUSE = 30.0
PAGE = 100
#: More pages than that is a server that never says "the end".
MOST_PAGES = 1000
#: What POST and PUT take of a workflow; one field more and n8n refuses it.
FIELDS = ("name", "nodes", "connections", "settings")
#: Behind a server that is busy or being restarted.
TRANSIENT = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True)
class Remote:
    """A workflow as n8n has it. `data` is its whole answer."""

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
    def published(self) -> bool:
        """Whether the version that n8n shows is the one that others run."""
        if "activeVersionId" not in self.data:
            return self.active
        return bool(self.version_id) and self.data["activeVersionId"] == self.version_id

    @property
    def is_archived(self) -> bool:
        return self.data.get("isArchived") is True


class Client:
    """One n8n. `transport`, `sleep`: for tests."""

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
            raise ConfigError("n8n needs an API key: make one in n8n under Settings, n8n API")
        if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ConfigError("the API key has characters that no key has: was more copied than the key?")
        #: Without the API's own path.
        self.url = address
        self._headers = {"X-N8N-API-KEY": api_key, "Accept": "application/json", "User-Agent": "backstay-n8n"}
        self._timeout = timeout
        self._retries = retries
        self._transport = transport
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    # ── workflows ──

    def workflows(self, *, name: str = "") -> Iterator[Remote]:
        """All of them, page by page."""
        query: dict[str, Any] = {"limit": PAGE, "excludePinnedData": "true"}
        if name:
            query["name"] = name
        for _ in range(MOST_PAGES):
            page = self._call("GET", "/workflows", query=query)
            yield from map(Remote, self._listed(page))
            cursor = page.get("nextCursor")
            if not cursor:
                return
            query["cursor"] = cursor
        raise N8nRefused(f"{self.url} gives page after page: {MOST_PAGES} of them, and no end")

    def workflow(self, workflow_id: str) -> Remote | None:
        """None: there is none of that id (for this key)."""
        try:
            return Remote(self._call("GET", f"/workflows/{quote(workflow_id, safe='')}", what=workflow_id))
        except N8nRefused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def create(self, workflow: Mapping[str, Any]) -> Remote:
        """n8n chooses the id."""
        body = {field: workflow[field] for field in FIELDS}
        return Remote(self._call("POST", "/workflows", body=body, again=False, what=str(workflow.get("name", ""))))

    def update(self, workflow_id: str, workflow: Mapping[str, Any]) -> Remote:
        body = {field: workflow[field] for field in FIELDS}
        path = f"/workflows/{quote(workflow_id, safe='')}"
        return Remote(self._call("PUT", path, body=body, what=str(workflow.get("name", ""))))

    def delete(self, workflow_id: str) -> None:
        """What is gone already is a success."""
        try:
            self._call("DELETE", f"/workflows/{quote(workflow_id, safe='')}", what=workflow_id)
        except N8nRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def publish(self, workflow_id: str) -> Remote:
        """On n8n 2.x the saved version becomes the one that others run; on 1.x this activates its triggers."""
        path = f"/workflows/{quote(workflow_id, safe='')}/activate"
        return Remote(self._call("POST", path, body={}, what=workflow_id))

    # ── credentials: n8n lists none, so whoever creates one keeps its id ──

    def create_credential(self, name: str, kind: str, data: Mapping[str, Any]) -> str:
        body = {"name": name, "type": kind, "data": dict(data)}
        said = self._call("POST", "/credentials", body=body, again=False, what=f"credential {name!r}", secret=True)
        found = said.get("id")
        if not isinstance(found, str) or not found:
            raise self._strange("the id of a credential")
        return found

    def delete_credential(self, credential_id: str) -> None:
        """What is gone already is a success."""
        try:
            self._call("DELETE", f"/credentials/{quote(credential_id, safe='')}", what=credential_id)
        except N8nRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def credential_schema(self, kind: str) -> dict[str, Any]:
        """Which fields a type of credential has, and of which types they are."""
        return self._call("GET", f"/credentials/schema/{quote(kind, safe='')}", what=f"credential type {kind!r}")

    # ── executions ──

    def executions(self, *, workflow_id: str = "", status: str = "", limit: int = 20) -> list[dict[str, Any]]:
        query: dict[str, Any] = {"limit": limit}
        if workflow_id:
            query["workflowId"] = workflow_id
        if status:
            query["status"] = status
        return self._listed(self._call("GET", "/executions", query=query))

    def retry_execution(self, execution_id: str) -> dict[str, Any]:
        """From the node that failed, without what came before it: a lock taken there is not taken again."""
        path = f"/executions/{quote(execution_id, safe='')}/retry"
        return self._call("POST", path, body={"loadWorkflow": True}, again=False, what=f"execution {execution_id}")

    # ── who is there ──

    def probe(self) -> None:
        """Whether n8n answers there, and takes this key. Raises N8nUnreachable or N8nRefused."""
        self._call("GET", "/workflows", query={"limit": 1})

    def major(self) -> int:
        """n8n's major version; 0 where it does not tell, as with its editor switched off."""
        try:
            answer = self._transport(
                "GET", f"{self.url}/rest/settings", {"Accept": "application/json"}, None, self._timeout
            )
            said = json.loads(answer.body)["data"]["versionCli"] if answer.status == HTTPStatus.OK else ""
            return int(str(said).partition(".")[0])
        except (OSError, NotSent, ValueError, KeyError, TypeError):
            return 0

    # ── how it is said ──

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        again: bool = True,
        what: str = "",
        secret: bool = False,
    ) -> dict[str, Any]:
        """One request and its answer. `again`: it may arrive twice."""
        url = f"{self.url}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        raw = None if body is None else json.dumps(body).encode()
        headers = self._headers if raw is None else {**self._headers, "Content-Type": "application/json"}
        attempt = 0
        while True:
            try:
                answer = self._transport(method, url, headers, raw, self._timeout)
            except NotSent as error:
                if attempt >= self._retries:
                    raise N8nUnreachable(f"no n8n answers at {self.url}: {error}") from None
            except (OSError, TimeoutError) as error:
                if not again:
                    raise N8nUnreachable(
                        f"n8n at {self.url} was sent {what or path} and never answered: look there whether it happened"
                    ) from None
                if attempt >= self._retries:
                    raise N8nUnreachable(
                        f"n8n at {self.url} does not answer within {self._timeout:g} s: {error}"
                    ) from None
            else:
                if not self._comes_back(answer, again) or attempt >= self._retries:
                    return self._read(answer, what, secret=secret)
                if (pause := retry_after(answer)) is not None:
                    if pause > LONGEST_PAUSE:
                        return self._read(answer, what, secret=secret)
                    self._sleep(pause)
                    attempt += 1
                    continue
            self._sleep(min(LONGEST_PAUSE, PAUSE * 2**attempt) * random.uniform(0.5, 1.0))
            attempt += 1

    @staticmethod
    def _comes_back(answer: Answer, again: bool) -> bool:
        """429 did nothing. Whether a gateway's 502 did is unknown, so only what may happen twice is asked again."""
        return answer.status == HTTPStatus.TOO_MANY_REQUESTS or (again and answer.status in TRANSIENT)

    def _read(self, answer: Answer, what: str, *, secret: bool) -> dict[str, Any]:
        if answer.status in range(200, 300):
            # Not by msgspec, which refuses a whole list for half a character in one name of it.
            with contextlib.suppress(ValueError, RecursionError):
                return msgspec.convert(json.loads(answer.body), dict[str, Any])
            raise self._strange("JSON that says something")
        raise N8nRefused(self._refusal(answer, what, secret=secret), status=answer.status)

    def _refusal(self, answer: Answer, what: str, *, secret: bool) -> str:
        said, place, status = message_of(answer), f"n8n at {self.url}", answer.status
        about = f" ({what})" if what else ""
        if status == HTTPStatus.UNAUTHORIZED:
            return f"{place} does not know this API key: make one in n8n under Settings, n8n API"
        if status == HTTPStatus.FORBIDDEN:
            return f"{place}: this API key may not do that{about}; give it the scopes for workflows and credentials"
        if status == HTTPStatus.NOT_FOUND and not said:
            return (
                f"{place} has no public API at /api/v1: it is switched off (N8N_PUBLIC_API_DISABLED), the address is"
                " another program's, or this n8n is too old (1.0 and later have it)"
            )
        if status == HTTPStatus.NOT_FOUND:
            return f"{place} has no such thing{about}, or this key may not see it"
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return f"{place} asks for fewer requests{about}: try again later"
        if status in range(300, 400):
            return f"{self.url} sends us elsewhere: use the address of n8n itself, not of a login page before it"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return f"{place} failed with {status}{about}: look at its log"
        if secret:  # a complaint may quote what it complains about
            return f"{place} refuses {what}: its fields do not fit the type; see its schema"
        return f"{place} refuses{about}: {said or status}" + hint_of(said)

    def _listed(self, page: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            return msgspec.convert(page.get("data"), list[dict[str, Any]])
        except msgspec.ValidationError:
            raise self._strange("a list") from None

    def _strange(self, wanted: str) -> N8nRefused:
        return N8nRefused(f"{self.url} answers, but not with {wanted}: is it an n8n?", status=200)


def check_url(url: str) -> str:
    """The address of an n8n, as it is used; raises ConfigError where it cannot be one."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for one that is no number
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ConfigError("the address of n8n is http://… or https://…, as in http://127.0.0.1:5678")
    if parts.username or parts.password:
        raise ConfigError("the address of n8n holds no user and password: the API key is what n8n asks for")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/api/v1')}"


def message_of(answer: Answer) -> str:
    """n8n's own words; empty where it is not n8n that speaks."""
    try:
        said = msgspec.json.decode(answer.body, type=dict[str, Any]).get("message")
    except msgspec.DecodeError:
        return ""
    return said[:500] if isinstance(said, str) else ""


def hint_of(said: str) -> str:
    if "additional properties" in said:
        return ". Its API takes fewer fields than its editor writes: remove what it names from the template"
    if "no node to start" in said:
        return ". It has no trigger that starts by itself, and needs none: others call it"
    return ""


def retry_after(answer: Answer) -> float | None:
    """Seconds, from either form of the header; None: not said."""
    said = answer.headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
