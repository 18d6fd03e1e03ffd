"""Push, pull and compare one environment of a workspace with its n8n server, and persist the sync state.

Every change in n8n is written to the workspace at once, so it is known even when a later step fails or the process is
killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backstay.errors import ConfigError, WorkspaceError
from backstay.n8n.json_types import is_mapping
from backstay.n8n.model import Workflow
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import Client
from backstay.n8n.sync.content import content
from backstay.n8n.sync.create_placeholders import create_placeholders
from backstay.n8n.sync.credentials import variables_of
from backstay.n8n.sync.dehydrate import dehydrate
from backstay.n8n.sync.state import FILE, State
from backstay.n8n.sync.sync import Change
from backstay.n8n.workspace.workspace import BUILD, Workspace

#: The API key's variable. The one with the environment's suffix takes precedence.
VARIABLE = "N8N_API_KEY"

Connect = Callable[[Workspace, str], Client]


def connect(workspace: Workspace, env: str) -> Client:
    """Connect to an environment's n8n. Raise ConfigError when the URL or the key is missing."""
    place = workspace.env(env).get("n8n")
    url = str(place.get("url") or "") if is_mapping(place) else ""
    if not url:
        raise ConfigError(f"n8n-config/{env}.yml does not set n8n.url")
    variables = variables_of(workspace, env)
    own = f"{VARIABLE}_{env.upper().replace('-', '_')}"
    key = variables.get(own) or variables.get(VARIABLE) or ""
    if not key:
        raise ConfigError(f"no API key: set {own} or {VARIABLE}, or put one of them into n8n-config/.env.{env}")
    return Client(url, key)


def used_credentials(client: Client) -> list[dict[str, str]]:
    """Return the credentials that n8n's workflows use; its API reveals no others."""
    found: dict[str, dict[str, str]] = {}
    for remote in client.workflows():
        for node in remote.data.get("nodes") or ():
            used = node.get("credentials") if is_mapping(node) else None
            for kind, one in used.items() if is_mapping(used) else ():
                if is_mapping(one) and one.get("id"):
                    found[str(one["id"])] = {"id": str(one["id"]), "name": str(one.get("name", "")), "type": str(kind)}
    return sorted(found.values(), key=lambda one: (one["type"], one["name"]))


@dataclass(slots=True)
class Deployment:
    """One environment, its n8n server, and the last known state of both."""

    workspace: Workspace
    env: str
    client: Client
    state: State

    @classmethod
    def of(cls, workspace: Workspace, env: str, link: Connect = connect) -> Deployment:
        workspace.select_environments([env])
        raw = workspace.files.read(_state_path(env)) or b""
        state = State.parse(raw.decode("utf-8", errors="replace"), _state_path(env))
        return cls(workspace, env, link(workspace, env), state)

    def built(self, keys: Iterable[str] | None = None) -> dict[str, Workflow]:
        """Hydrate the workflows, in push order."""
        wanted = list(dict.fromkeys(keys)) if keys else list(self.workspace.keys)
        order = {key: at for at, key in enumerate(self.workspace.order)}
        wanted.sort(key=lambda key: order.get(key, len(order)))
        return {key: self.workspace.hydrate(self.env, key) for key in wanted}

    # ── the four verbs ──

    def status(self, keys: Iterable[str] | None = None) -> list[Change]:
        return sync.status(self.client, self.built(keys), self.state)

    def diff(self, keys: Iterable[str] | None = None) -> list[Change]:
        return sync.diff(self.client, self.built(keys), self.state)

    def push(self, keys: Iterable[str] | None = None, *, force: bool = False, dry_run: bool = False) -> list[Change]:
        """Push inside edit(). Missing workflows are created first, so that their callers are hydrated with the new
        ids.
        """
        built = self.built(keys)
        if dry_run:
            return sync.push(self.client, built, self.state, force=force, dry_run=True)
        found = sync.push(self.client, built, self.state, force=force, dry_run=True)
        if conflicts := [change for change in found if change.action == "conflict"]:
            details = "; ".join(f"{change.key}: {change.detail}" for change in conflicts)
            raise WorkspaceError(f"nothing was changed, because a push would overwrite edits: {details}")
        missing = [change.key for change in found if change.action == "create"]
        for key in missing:
            self._create_placeholder(key)
        built = self.built(keys)
        done = sync.push(self.client, built, self.state, force=force, keep=self._checkpoint)
        for key, workflow in built.items():
            self.workspace.write_built(self.env, key, workflow)
        return [
            Change(one.key, "create", one.id, one.name, one.detail, one.diff)
            if one.key in missing and one.action == "update"
            else one
            for one in done
        ]

    def _create_placeholder(self, key: str) -> None:
        """Create an empty workflow in n8n and register its id before any caller is hydrated."""
        template = {key: self.workspace.hydrate(self.env, key)}
        (change,) = create_placeholders(self.client, template, self.state, keep=self._checkpoint)
        self._put_id(key, change.id, change.name)
        self._checkpoint()

    def pull(
        self,
        keys: Iterable[str] | None = None,
        *,
        more: Mapping[str, str] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[Change]:
        """Pull inside edit(). Templates and built files become n8n's content; unchanged parts keep their
        placeholders.
        """
        more = more or {}
        named = [key for key in (keys or ()) if key not in more]
        built = self.built(named) if named or not more else {}
        done = sync.pull(self.client, built, self.state, more=more, force=force, dry_run=dry_run)
        for change in done:
            if change.workflow is not None:
                self._write_pulled(change, built.get(change.key))
        return done

    def _write_pulled(self, change: Change, before: Workflow | None) -> None:
        """Write the pulled template and built file, after checking that the template hydrates to n8n's content."""
        becomes = change.workflow
        if becomes is None:
            return
        if change.key not in self.workspace.workflow_ids(self.env):
            self._put_id(change.key, change.id, change.name)
        ids = {
            known: f"{{{{@:env:workflows.{key}.id}}}}"
            for key, known in self.workspace.workflow_ids(self.env).items()
            if key != change.key
        }
        if before is None:
            template = Workflow(
                {name: dehydrate(None, None, part, ids) for name, part in content(becomes.data).items()}
            )
        else:
            template = self.workspace.read(change.key).copy()
            made = dehydrate(template.data, before.data, becomes.data, ids)
            template.data = {name: part for name, part in made.items() if name != "id" or "id" in template.data}
        self.workspace.write(change.key, template)
        again = self.workspace.hydrate(self.env, change.key)
        if content(again.data) != content(becomes.data):
            raise WorkspaceError(
                f"{change.key}: the placeholders cannot be restored from n8n's content: edit the template by hand"
            )
        self.workspace.write_built(self.env, change.key, again)

    # ── state ──

    def save_state(self) -> None:
        """Write the sync state into the current view, inside edit()."""
        if self.state.workflows or self.state.begun:
            self.workspace.files.write(_state_path(self.env), self.state.text().encode())

    def _checkpoint(self) -> None:
        """Persist what n8n has done at once, so that nothing is repeated after a crash."""
        self.save_state()
        self.workspace.checkpoint()

    def _put_id(self, key: str, made: str, name: str) -> None:
        self.workspace.register(self.env, key, name=name, id=made)


def _state_path(env: str) -> str:
    return f"{BUILD}/{env}/{FILE}"


def as_fields(change: Change) -> dict[str, Any]:
    """Return a change as JSON fields."""
    return {
        "workflow_key": change.key,
        "action": change.action,
        "id": change.id,
        "name": change.name,
        "detail": change.detail,
    }
