"""The workspace: a folder of workflow templates, the settings of each environment, and the built workflows.

```
n8n-config/common.yml             settings that all environments share
n8n-config/<env>.yml              one environment's settings: ids, credentials, lockScopes, n8n's address
n8n-config/deployment_order.yml   the push order
n8n-workflows-template/<key>.template.json
n8n-build/<env>/<key>.json        hydrated, ready for n8n
```

Changes are made inside `edit()`: one command at a time, and all files change or none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.model import Workflow
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace import journal
from backstay.n8n.workspace.environments import CONFIG, SCOPES
from backstay.n8n.workspace.files import PRIVATE, Change, Files
from backstay.n8n.workspace.hydrate import Hydration
from backstay.n8n.workspace.settings_file import SettingsFile

TEMPLATES = "n8n-workflows-template"
BUILD = "n8n-build"
TEMPLATE_SUFFIX = ".template.json"
BUILT_SUFFIX = ".json"


class Workspace:
    """A view of one workspace. `notes` collects messages for the user."""

    def __init__(self, root: Path, *, editing: bool = False) -> None:
        self.root = root
        self.files = Files(root)
        self.notes: list[str] = []
        self._editing = editing
        #: Parsed settings by path, with the bytes that they were parsed from.
        self._read: dict[str, tuple[bytes, SettingsFile]] = {}

    @classmethod
    def open(cls, path: Path | str = ".") -> Self:
        """Open an existing workspace; raise WorkspaceError when there is none."""
        root = Path(path)
        if not (root / CONFIG).is_dir():
            raise WorkspaceError(
                f"{root} is not a workspace (no folder {CONFIG}); `backstay n8n init --workspace {root}` creates one"
            )
        return cls(root)

    @contextmanager
    def edit(self, *, dry_run: bool = False) -> Generator[Self, None, None]:
        """Yield a new view under the exclusive lock and write its changes atomically at the end; an error discards
        them.

        With `dry_run` nothing is written, and `files.diff()` shows the changes.
        """
        view = type(self)(self.root, editing=True)
        # A dry run must not even create the lock file in a folder that has none.
        if dry_run and not (self.root / PRIVATE).is_dir():
            yield view
            return
        with journal.exclusive(self.root, read_only=dry_run) as undone:
            _note_recovery(view, undone)
            yield view
            if not dry_run:
                journal.commit(self.root, view.files.changes)

    @contextmanager
    def read_view(self) -> Generator[Self, None, None]:
        """Yield a new view that no other command changes meanwhile."""
        if not (self.root / PRIVATE).is_dir():  # no command has ever written here
            yield type(self)(self.root)
            return
        with journal.exclusive(self.root, read_only=True) as undone:
            view = type(self)(self.root)
            _note_recovery(view, undone)
            yield view

    def checkpoint(self) -> None:
        """Write the changes so far, inside edit(). They persist when a later step fails or the process is killed."""
        self._check_editing()
        journal.commit(self.root, self.files.changes)
        self.files.mark_written()

    @property
    def changes(self) -> list[Change]:
        return self.files.all_changes

    # ── environments ──

    @property
    def environments(self) -> tuple[str, ...]:
        """The sorted names of the environments."""
        found = self.files.names(CONFIG, ".yml")
        return tuple(name for name in found if name not in (envs.COMMON, envs.ORDER))

    def select_environments(self, names: list[str] | tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the named environments, or all. Raise WorkspaceError for an unknown one."""
        known = self.environments
        for name in names or ():
            envs.check_environment(name)
            if name not in known:
                raise WorkspaceError(f"no environment is named {name!r}: {self._known(known)}")
        if not known:
            raise WorkspaceError(f"the workspace has no environment: {self._known(known)}")
        return tuple(dict.fromkeys(names)) if names else known

    def _known(self, known: tuple[str, ...]) -> str:
        if known:
            return f"{CONFIG} has {', '.join(known)}"
        return f"{CONFIG} has no <name>.yml; `backstay n8n init --env NAME` creates one"

    def env(self, name: str) -> dict[str, Any]:
        """Return an environment's settings merged with the common ones."""
        self.select_environments([name])
        return envs.merged(self._settings(envs.COMMON).data, self._settings(name).data)

    def scopes(self, env: str) -> tuple[str, ...]:
        """Return the lock scopes that clean-up checks."""
        return envs.scopes_of(self.env(env), envs.path_of(env))

    def workflow_ids(self, env: str) -> dict[str, str]:
        """Return the ids of registered workflows by key, without those that have no id yet."""
        table = self.env(env).get("workflows")
        keys = [str(key) for key in table] if is_mapping(table) else []
        found = {key: self.entry(env, key).get("id") for key in keys}
        return {key: str(value) for key, value in found.items() if value not in (None, "")}

    def credentials(self, env: str) -> tuple[str, ...]:
        """Return the credential names that templates use."""
        table = self.env(env).get("credentials")
        return tuple(table) if is_mapping(table) else ()

    def entry(self, env: str, key: str, table: str = "workflows") -> dict[str, Any]:
        """Return `workflows.<key>`, or the entry of another table; empty when it is absent."""
        return envs.entry_of(self.env(env), table, key)

    def _settings(self, name: str) -> SettingsFile:
        path = envs.path_of(name)
        raw = self.files.read(path) or b""
        known = self._read.get(path)
        if known is None or known[0] != raw:
            self._read[path] = known = (raw, SettingsFile.parse(raw, path))
        return known[1]

    # ── workflows ──

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all workflows that have a template."""
        return tuple(self.files.names(TEMPLATES, TEMPLATE_SUFFIX))

    def template_path(self, key: str) -> str:
        """Return the template's path, relative to the workspace."""
        return f"{TEMPLATES}/{envs.check_key(key)}{TEMPLATE_SUFFIX}"

    def built_path(self, env: str, key: str) -> str:
        return f"{BUILD}/{envs.check_environment(env)}/{envs.check_key(key)}{BUILT_SUFFIX}"

    def has(self, key: str) -> bool:
        return self.files.exists(self.template_path(key))

    def read(self, key: str) -> Workflow:
        """Read a template. Raise BadWorkflow when it is not a workflow, WorkspaceError when it does not exist."""
        path = self.template_path(key)
        return Workflow.parse(self._content(path, key), source=path)

    def read_built(self, env: str, key: str) -> Workflow:
        path = self.built_path(env, key)
        raw = self.files.read(path)
        if raw is None:
            raise WorkspaceError(f"{path} does not exist; `backstay n8n hydrate --env {env}` builds it")
        return Workflow.parse(raw, source=path)

    def _content(self, path: str, key: str) -> bytes:
        raw = self.files.read(path)
        if raw is None:
            known = ", ".join(self.keys) or "no templates"
            raise WorkspaceError(f"no workflow is named {key!r}: {path} does not exist ({TEMPLATES} has {known})")
        return raw

    # ── hydrate ──

    def hydrate(self, env: str, key: str, *, strict: bool = False) -> Workflow:
        """Return a template with placeholders resolved and the environment's id and name. Nothing is written."""
        self.select_environments([env])
        path = self.template_path(key)
        raw = self._content(path, key)
        config = envs.path_of(env)
        if self.files.exists(envs.path_of(envs.COMMON)):
            config += f" and {envs.path_of(envs.COMMON)}"
        hydration = Hydration(env, key, path, self.env(env), self._included, config)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WorkspaceError(f"{path}: the file is not UTF-8 (byte {error.start})") from error
        made = Workflow.parse(hydration.template(text), source=path)
        if strict and hydration.warnings:
            raise WorkspaceError("; ".join(hydration.warnings))
        self.notes += [note for note in hydration.warnings if note not in self.notes]
        return self._named(env, key, made)

    def _named(self, env: str, key: str, made: Workflow) -> Workflow:
        entry = self.entry(env, key)
        data = dict(made.data)
        if entry.get("id"):
            data = {"id": None, **data} | {"id": str(entry["id"])}
        if entry.get("name"):
            data["name"] = str(entry["name"])
        return replace(made, data=data, source=self.built_path(env, key))

    def _included(self, path: str) -> str:
        """Return the text of an included file, looked up in the workspace and then beside the templates."""
        for place in (path, f"{TEMPLATES}/{path}"):
            raw = self.files.read(place)
            if raw is not None:
                try:
                    return raw.decode("utf-8").removeprefix("\ufeff")
                except UnicodeDecodeError as error:
                    raise WorkspaceError(f"{place} is not UTF-8 (byte {error.start})") from error
        raise WorkspaceError(f"the workspace has no file {path}")

    # ── changes, inside edit() ──

    def write(self, key: str, workflow: Workflow) -> None:
        self._write(self.template_path(key), workflow.text())

    def write_built(self, env: str, key: str, workflow: Workflow) -> None:
        self._write(self.built_path(env, key), workflow.text())

    def delete(self, key: str) -> None:
        """Delete a template and the files built from it."""
        self._check_editing()
        for path in (self.template_path(key), *(self.built_path(env, key) for env in self.environments)):
            if self.files.exists(path):
                self.files.delete(path)

    def set(self, env: str, path: tuple[str, ...], value: Any) -> None:
        """Set a value in an environment's own file, preserving the rest of the file including comments."""
        self._change(env, lambda settings: settings.set(path, value))

    def unset(self, env: str, path: tuple[str, ...]) -> None:
        self._change(env, lambda settings: settings.remove(path))

    def _change(self, env: str, change: Callable[[SettingsFile], None]) -> None:
        settings = self._settings(env)
        path = envs.path_of(env)
        del self._read[path]  # a failed change must not leave a half-edited parse in the cache
        change(settings)
        text = settings.text()
        self._write(path, text)
        self._read[path] = (text.encode(), settings)

    def register(self, env: str, key: str, *, name: str, id: str = "") -> str:  # noqa: A002 - what n8n calls it
        """Register `workflows.<key>` in an environment. An existing id is kept unless another is given. Return the
        id.
        """
        envs.check_key(key)
        entry = self.entry(env, key)
        if entry.get("id") and id in ("", str(entry["id"])):
            return str(entry["id"])
        chosen = id or envs.local_id()
        if entry:
            self.set(env, ("workflows", key, "id"), chosen)
        else:
            self.set(env, ("workflows", key), {"id": chosen, "name": name} if name else {"id": chosen})
        return chosen

    def unregister(self, env: str, key: str) -> None:
        self.unset(env, ("workflows", key))

    def add_scope(self, env: str, scope: str) -> bool:
        """Register a scope; return whether it is new."""
        scopes = self.scopes(env)
        if scope in scopes:
            return False
        self.set(env, (SCOPES,), [*scopes, scope])
        return True

    def remove_scope(self, env: str, scope: str) -> bool:
        """Unregister a scope; return whether it was registered."""
        scopes = self.scopes(env)
        if scope not in scopes:
            return False
        self.set(env, (SCOPES,), [one for one in scopes if one != scope])
        return True

    @property
    def order(self) -> list[str]:
        """The push order as keys; called workflows come before their callers."""
        found = self._settings(envs.ORDER).data.get("order")
        if found is None:
            return []
        if not is_list(found) or not all(isinstance(key, str) for key in found):
            raise WorkspaceError(f"{envs.path_of(envs.ORDER)}: order must be a list of workflow keys")
        return [str(key) for key in found]

    def add_to_order(self, key: str, *, first: bool = False) -> None:
        """Add a workflow to the push order once. A workflow that others call belongs before its callers."""
        order = self.order
        if key not in order:
            self.set(envs.ORDER, ("order",), [key, *order] if first else [*order, key])

    def remove_from_order(self, key: str) -> None:
        order = self.order
        if key in order:
            self.set(envs.ORDER, ("order",), [one for one in order if one != key])

    def _write(self, path: str, text: str) -> None:
        self._check_editing()
        self.files.write(path, text.encode())

    def _check_editing(self) -> None:
        if not self._editing:
            raise RuntimeError("changes to a workspace are only allowed inside edit()")


def _note_recovery(view: Workspace, undone: list[str]) -> None:
    if undone:
        view.notes.append(f"an interrupted command was rolled back; restored files: {', '.join(undone)}")
