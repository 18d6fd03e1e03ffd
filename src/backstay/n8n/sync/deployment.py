"""Push, pull and compare one environment of a workspace with its n8n server, and persist the sync state.

Every change in n8n is recorded in the workspace at once, so it is not forgotten when a later step fails or the process
is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backstay.errors import ConfigError, WorkspaceError
from backstay.n8n.json_types import is_mapping
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import N8nClient
from backstay.n8n.sync.content import content
from backstay.n8n.sync.create_placeholders import create_placeholders
from backstay.n8n.sync.credentials import variables_of
from backstay.n8n.sync.dehydrate import dehydrate
from backstay.n8n.sync.state import FILE, SyncState
from backstay.n8n.sync.sync import SyncChange
from backstay.n8n.workspace.workspace import BUILD, Workspace

#: The variable with the API key. N8N_API_KEY_DEV takes precedence for the environment `dev`, and so on.
VARIABLE = "N8N_API_KEY"

Connect = Callable[[Workspace, str], N8nClient]


def connect(workspace: Workspace, env: str) -> N8nClient:
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
    return N8nClient(url, key)


def used_credentials(client: N8nClient) -> list[dict[str, str]]:
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
    """One environment of a workspace, its n8n server, and what both of them contained at the last sync."""

    workspace: Workspace
    env: str
    client: N8nClient
    state: SyncState

    @classmethod
    def of(cls, workspace: Workspace, env: str, link: Connect = connect) -> Deployment:
        workspace.select_environments([env])
        raw = workspace.files.read(_state_path(env)) or b""
        state = SyncState.parse(raw.decode("utf-8", errors="replace"), _state_path(env))
        return cls(workspace, env, link(workspace, env), state)

    def hydrate(self, keys: Iterable[str] | None = None) -> dict[str, N8nWorkflow]:
        """Return the workflows by key, in push order, with the placeholders of their templates resolved. With `keys`,
        return only these.
        """
        wanted = list(dict.fromkeys(keys)) if keys else list(self.workspace.keys)
        order = {key: at for at, key in enumerate(self.workspace.order)}
        wanted.sort(key=lambda key: order.get(key, len(order)))
        return {key: self.workspace.hydrate(self.env, key) for key in wanted}

    # ── status, diff, push and pull ──

    def status(self, keys: Iterable[str] | None = None) -> list[SyncChange]:
        return sync.status(self.client, self.hydrate(keys), self.state)

    def diff(self, keys: Iterable[str] | None = None) -> list[SyncChange]:
        return sync.diff(self.client, self.hydrate(keys), self.state)

    def push(
        self, keys: Iterable[str] | None = None, *, force: bool = False, dry_run: bool = False
    ) -> list[SyncChange]:
        """Update n8n from the templates. Workflows that n8n lacks are created first, so that the workflows that call
        them can contain their ids. Raise WorkspaceError for conflicts. Call it inside `workspace.edit()`.
        """
        built = self.hydrate(keys)
        if dry_run:
            return sync.push(self.client, built, self.state, force=force, dry_run=True)
        found = sync.push(self.client, built, self.state, force=force, dry_run=True)
        if conflicts := [change for change in found if change.action == "conflict"]:
            details = "; ".join(f"{change.key}: {change.detail}" for change in conflicts)
            raise WorkspaceError(f"nothing was changed, because a push would overwrite edits: {details}")
        missing = [change.key for change in found if change.action == "create"]
        for key in missing:
            self._create_placeholder(key)
        built = self.hydrate(keys)
        done = sync.push(self.client, built, self.state, force=force, keep=self._checkpoint)
        for key, workflow in built.items():
            self.workspace.write_built(self.env, key, workflow)
        return [
            SyncChange(one.key, "create", one.id, one.name, one.detail, one.diff)
            if one.key in missing and one.action == "update"
            else one
            for one in done
        ]

    def _create_placeholder(self, key: str) -> None:
        """Create an empty workflow in n8n and store its id in the workspace. Templates of workflows that call it
        contain a placeholder, which this id then replaces.
        """
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
    ) -> list[SyncChange]:
        """Update the templates and built files from n8n. Values that did not change in n8n keep their placeholders.
        `more`: also create templates for these workflows of n8n, given as key of the new template → id in n8n. Call it
        inside `workspace.edit()`.
        """
        more = more or {}
        named = [key for key in (keys or ()) if key not in more]
        built = self.hydrate(named) if named or not more else {}
        done = sync.pull(self.client, built, self.state, more=more, force=force, dry_run=dry_run)
        for change in done:
            if change.workflow is not None:
                self._write_pulled(change, built.get(change.key))
        return done

    def _write_pulled(self, change: SyncChange, before: N8nWorkflow | None) -> None:
        """Write the pulled workflow as a template and as a built file, the template with its placeholders resolved.
        Raise WorkspaceError if that does not give the content of the workflow in n8n.
        """
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
            template = N8nWorkflow(
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
        """Write the sync state to its file in the workspace. Call it inside edit()."""
        if self.state.workflows or self.state.begun:
            self.workspace.files.write(_state_path(self.env), self.state.text().encode())

    def _checkpoint(self) -> None:
        """Write the sync state and all pending changes of the workspace to disk now. After a crash, the workspace then
        still knows what has been changed in n8n.
        """
        self.save_state()
        self.workspace.checkpoint()

    def _put_id(self, key: str, made: str, name: str) -> None:
        self.workspace.register(self.env, key, name=name, id=made)


def _state_path(env: str) -> str:
    return f"{BUILD}/{env}/{FILE}"


def as_fields(change: SyncChange) -> dict[str, Any]:
    """Return the fields of a change that `--json` prints."""
    return {
        "workflow_key": change.key,
        "action": change.action,
        "id": change.id,
        "name": change.name,
        "detail": change.detail,
    }
