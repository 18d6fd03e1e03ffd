"""A workspace and the n8n of one of its environments: what is pushed, pulled and compared, and what is kept of it.

Everything that changed in n8n is written down here at once: it is known also when we fail or are killed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backstay.errors import ConfigError, WorkspaceError
from backstay.n8n.json_types import is_table
from backstay.n8n.model import Workflow
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import Client
from backstay.n8n.sync.content import content
from backstay.n8n.sync.create_placeholders import mint
from backstay.n8n.sync.credentials import variables_of
from backstay.n8n.sync.dehydrate import dehydrate
from backstay.n8n.sync.state import FILE, State
from backstay.n8n.sync.sync import Change
from backstay.n8n.workspace.workspace import BUILD, Workspace

#: Where the API key is looked for: first that of one environment, then that of all.
VARIABLE = "N8N_API_KEY"

Connect = Callable[[Workspace, str], Client]


def connect(workspace: Workspace, env: str) -> Client:
    """Raises ConfigError when the address or the key is missing."""
    place = workspace.env(env).get("n8n")
    url = str(place.get("url") or "") if is_table(place) else ""
    if not url:
        raise ConfigError(f"n8n-config/{env}.yml does not say where n8n is: n8n.url")
    variables = variables_of(workspace, env)
    own = f"{VARIABLE}_{env.upper().replace('-', '_')}"
    key = variables.get(own) or variables.get(VARIABLE) or ""
    if not key:
        raise ConfigError(f"no API key: set {own} or {VARIABLE}, or put it into n8n-config/.env.{env}")
    return Client(url, key)


def used_credentials(client: Client) -> list[dict[str, str]]:
    """The credentials that n8n's workflows use: the only ones that its API tells of."""
    found: dict[str, dict[str, str]] = {}
    for remote in client.workflows():
        for node in remote.data.get("nodes") or ():
            used = node.get("credentials") if is_table(node) else None
            for kind, one in used.items() if is_table(used) else ():
                if is_table(one) and one.get("id"):
                    found[str(one["id"])] = {"id": str(one["id"]), "name": str(one.get("name", "")), "type": str(kind)}
    return sorted(found.values(), key=lambda one: (one["type"], one["name"]))


@dataclass(slots=True)
class Deployment:
    """One environment, its n8n, and what is known of both."""

    workspace: Workspace
    env: str
    client: Client
    state: State

    @classmethod
    def of(cls, workspace: Workspace, env: str, link: Connect = connect) -> Deployment:
        workspace.chosen([env])
        raw = workspace.files.read(_state_path(env)) or b""
        state = State.parse(raw.decode("utf-8", errors="replace"), _state_path(env))
        return cls(workspace, env, link(workspace, env), state)

    def built(self, keys: Iterable[str] | None = None) -> dict[str, Workflow]:
        """Hydrated now, in the order of deployment."""
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
        """What n8n does not have is made first, so that those who call it get its id. Inside edit()."""
        built = self.built(keys)
        if dry_run:
            return sync.push(self.client, built, self.state, force=force, dry_run=True)
        found = sync.push(self.client, built, self.state, force=force, dry_run=True)
        if conflicts := [change for change in found if change.action == "conflict"]:
            told = "; ".join(f"{change.key}: {change.detail}" for change in conflicts)
            raise WorkspaceError(f"nothing was changed, because a push would lose somebody's work: {told}")
        missing = [change.key for change in found if change.action == "create"]
        for key in missing:
            self._mint(key)
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

    def _mint(self, key: str) -> None:
        """A workflow in n8n that has an id and nothing else yet: its id is in the settings before anybody needs it."""
        template = {key: self.workspace.hydrate(self.env, key)}
        (change,) = mint(self.client, template, self.state, keep=self._checkpoint)
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
        """Templates and built files become what n8n has; placeholders stay where nothing changed. Inside edit()."""
        more = more or {}
        named = [key for key in (keys or ()) if key not in more]
        built = self.built(named) if named or not more else {}
        done = sync.pull(self.client, built, self.state, more=more, force=force, dry_run=dry_run)
        for change in done:
            if change.workflow is not None:
                self._take(change, built.get(change.key))
        return done

    def _take(self, change: Change, before: Workflow | None) -> None:
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
                f"{change.key}: what n8n has cannot be told from what placeholders stand for: change the template"
                " by hand"
            )
        self.workspace.write_built(self.env, change.key, again)

    # ── what is kept ──

    def keep(self) -> None:
        """State and ids, into the files of the view under way."""
        if self.state.workflows or self.state.begun:
            self.workspace.files.write(_state_path(self.env), self.state.text().encode())

    def _checkpoint(self) -> None:
        """What n8n has done is written down at once: nothing of it happens twice, whatever happens to us."""
        self.keep()
        self.workspace.checkpoint()

    def _put_id(self, key: str, made: str, name: str) -> None:
        self.workspace.register(self.env, key, name=name, id=made)


def _state_path(env: str) -> str:
    return f"{BUILD}/{env}/{FILE}"


def shown(change: Change) -> dict[str, Any]:
    """For programs."""
    return {
        "workflow_key": change.key,
        "action": change.action,
        "id": change.id,
        "name": change.name,
        "detail": change.detail,
    }
