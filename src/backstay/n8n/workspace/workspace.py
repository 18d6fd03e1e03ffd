"""The workspace: a folder of workflow templates, the settings of each environment, and the built workflows.

```
n8n-config/common.yml             settings that all environments share
n8n-config/<env>.yml              one environment's settings: ids, credentials, lockScopes, n8n's address
n8n-config/deployment_order.yml   the push order
n8n-workflows-template/<key>.template.json
n8n-build/<env>/<key>.json        hydrated, ready for n8n
```

Changes are made inside `edit()`: it runs one command at a time, and all files change or none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace import journal
from backstay.n8n.workspace.environments import CONFIG, SCOPES
from backstay.n8n.workspace.files import PRIVATE, FileChange, Files
from backstay.n8n.workspace.hydrate import Hydration
from backstay.n8n.workspace.settings_file import SettingsFile

TEMPLATES = "n8n-workflows-template"
BUILD = "n8n-build"
TEMPLATE_SUFFIX = ".template.json"
BUILT_SUFFIX = ".json"


class Workspace:
    """A view of one workspace: its files, and the changes of one command. `notes` collects messages for the user."""

    def __init__(self, root: Path, *, editing: bool = False) -> None:
        self.root = root
        self.files = Files(root)
        self.notes: list[str] = []
        self._editing = editing
        #: A cache of parsed settings files, by path. The bytes are the file's contents when it was parsed: if they have
        #: changed, the file is parsed again.
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
        """Yield a new view under the workspace's exclusive lock, and write its changes atomically when the block ends.
        If the block raises, they are discarded.

        With `dry_run` nothing is written, and `files.diff()` of the view shows the changes.
        """
        view = type(self)(self.root, editing=True)
        # A dry run writes nothing. Taking the lock would create the lock file in a workspace that has none, so skip it.
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
        """Yield a new view for reading. No other command changes the files while the block runs."""
        if not (self.root / PRIVATE).is_dir():  # no command has written here yet, so there is no lock file
            yield type(self)(self.root)
            return
        with journal.exclusive(self.root, read_only=True) as undone:
            view = type(self)(self.root)
            _note_recovery(view, undone)
            yield view

    def checkpoint(self) -> None:
        """Write the changes that the block of `edit()` has made so far to disk. They stay written even if the block
        raises later or the process is killed.
        """
        self._check_editing()
        journal.commit(self.root, self.files.changes)
        self.files.mark_written()

    @property
    def changes(self) -> list[FileChange]:
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
                raise WorkspaceError(f"no environment is named {name!r}: {self._describe_environments(known)}")
        if not known:
            raise WorkspaceError(f"the workspace has no environment: {self._describe_environments(known)}")
        return tuple(dict.fromkeys(names)) if names else known

    def _describe_environments(self, known: tuple[str, ...]) -> str:
        if known:
            return f"{CONFIG} has {', '.join(known)}"
        return f"{CONFIG} has no <name>.yml; `backstay n8n init --env NAME` creates one"

    def env(self, name: str) -> dict[str, Any]:
        """Return the settings of an environment: those of common.yml, overridden by those of its own file."""
        self.select_environments([name])
        return envs.merge(self._settings(envs.COMMON).data, self._settings(name).data)

    def scopes(self, env: str) -> tuple[str, ...]:
        """Return the lock scopes that are listed in an environment's settings (`lockScopes`). After a failed execution,
        the clean-up workflow checks these locks.
        """
        return envs.scopes_of(self.env(env), envs.path_of(env))

    def workflow_ids(self, env: str) -> dict[str, str]:
        """Return the ids of registered workflows by key, without those that have no id yet."""
        table = self.env(env).get("workflows")
        keys = [str(key) for key in table] if is_mapping(table) else []
        found = {key: self.entry(env, key).get("id") for key in keys}
        return {key: str(value) for key, value in found.items() if value not in (None, "")}

    def credentials(self, env: str) -> tuple[str, ...]:
        """Return the names of the credentials that are listed in an environment's settings."""
        table = self.env(env).get("credentials")
        return tuple(table) if is_mapping(table) else ()

    def entry(self, env: str, key: str, table: str = "workflows") -> dict[str, Any]:
        """Return the entry `key` of a table in an environment's settings; an empty dict when it is absent. The default
        table is `workflows`, whose entries hold the id and name of each workflow.
        """
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

    def read(self, key: str) -> N8nWorkflow:
        """Read a template. Raise BadWorkflow when it is not a workflow, WorkspaceError when it does not exist."""
        path = self.template_path(key)
        return N8nWorkflow.parse(self._content(path, key), source=path)

    def read_built(self, env: str, key: str) -> N8nWorkflow:
        path = self.built_path(env, key)
        raw = self.files.read(path)
        if raw is None:
            raise WorkspaceError(f"{path} does not exist; `backstay n8n hydrate --env {env}` builds it")
        return N8nWorkflow.parse(raw, source=path)

    def _content(self, path: str, key: str) -> bytes:
        raw = self.files.read(path)
        if raw is None:
            known = ", ".join(self.keys) or "no templates"
            raise WorkspaceError(f"no workflow is named {key!r}: {path} does not exist ({TEMPLATES} has {known})")
        return raw

    # ── hydrate ──

    def hydrate(self, env: str, key: str, *, strict: bool = False) -> N8nWorkflow:
        """Return a template with placeholders resolved and the environment's id and name. Nothing is written."""
        self.select_environments([env])
        path = self.template_path(key)
        raw = self._content(path, key)
        config = envs.path_of(env)
        if self.files.exists(envs.path_of(envs.COMMON)):
            config += f" and {envs.path_of(envs.COMMON)}"
        hydration = Hydration(env, key, path, self.env(env), self._read_included, config)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WorkspaceError(f"{path}: the file is not UTF-8 (byte {error.start})") from error
        made = N8nWorkflow.parse(hydration.template(text), source=path)
        if strict and hydration.warnings:
            raise WorkspaceError("; ".join(hydration.warnings))
        self.notes += [note for note in hydration.warnings if note not in self.notes]
        return self._set_id_and_name(env, key, made)

    def _set_id_and_name(self, env: str, key: str, made: N8nWorkflow) -> N8nWorkflow:
        entry = self.entry(env, key)
        data = dict(made.data)
        if entry.get("id"):
            data = {"id": None, **data} | {"id": str(entry["id"])}
        if entry.get("name"):
            data["name"] = str(entry["name"])
        return replace(made, data=data, source=self.built_path(env, key))

    def _read_included(self, path: str) -> str:
        """Return the text of an included file. Its path is relative to the workspace or to the folder of templates."""
        for place in (path, f"{TEMPLATES}/{path}"):
            raw = self.files.read(place)
            if raw is not None:
                try:
                    return raw.decode("utf-8").removeprefix("\ufeff")
                except UnicodeDecodeError as error:
                    raise WorkspaceError(f"{place} is not UTF-8 (byte {error.start})") from error
        raise WorkspaceError(f"the workspace has no file {path}")

    # ── changes, inside edit() ──

    def write(self, key: str, workflow: N8nWorkflow) -> None:
        self._write(self.template_path(key), workflow.text())

    def write_built(self, env: str, key: str, workflow: N8nWorkflow) -> None:
        self._write(self.built_path(env, key), workflow.text())

    def delete(self, key: str) -> None:
        """Delete a template and the files built from it."""
        self._check_editing()
        for path in (self.template_path(key), *(self.built_path(env, key) for env in self.environments)):
            if self.files.exists(path):
                self.files.delete(path)

    def set(self, env: str, path: tuple[str, ...], value: Any) -> None:
        """Set a value in an environment's own file. The rest of the file, including comments, is preserved."""
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
        """Register a workflow in an environment's settings (`workflows.<key>`) and return its id: `id` if it is given,
        else the id that is already registered, else a generated one.
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
        """Add a lock scope to an environment's list `lockScopes`. Return whether it was missing."""
        scopes = self.scopes(env)
        if scope in scopes:
            return False
        self.set(env, (SCOPES,), [*scopes, scope])
        return True

    def remove_scope(self, env: str, scope: str) -> bool:
        """Remove a lock scope from an environment's list `lockScopes`. Return whether it was there."""
        scopes = self.scopes(env)
        if scope not in scopes:
            return False
        self.set(env, (SCOPES,), [one for one in scopes if one != scope])
        return True

    @property
    def order(self) -> list[str]:
        """The keys of the workflows in the order in which they are pushed. A workflow that others call comes before its
        callers.
        """
        found = self._settings(envs.ORDER).data.get("order")
        if found is None:
            return []
        if not is_list(found) or not all(isinstance(key, str) for key in found):
            raise WorkspaceError(f"{envs.path_of(envs.ORDER)}: order must be a list of workflow keys")
        return [str(key) for key in found]

    def add_to_order(self, key: str, *, first: bool = False) -> None:
        """Add a workflow to the push order, unless it is there. `first`: at the start, for a workflow that
        others call.
        """
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
