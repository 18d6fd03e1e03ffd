"""A folder of n8n workflows: templates, the settings of each environment, and what is built from both.

```
n8n-config/common.yml             what all environments share
n8n-config/<env>.yml              what one says otherwise: ids, credentials, lockScopes, where its n8n is
n8n-config/deployment_order.yml   what is pushed first
n8n-workflows-template/<key>.template.json
n8n-build/<env>/<key>.json        hydrated, as n8n takes it
```

Changes are made inside `edit()`: one command at a time, all files or none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_table
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
    """A view of one workspace. `notes` are what whoever asked should be told."""

    def __init__(self, root: Path, *, editing: bool = False) -> None:
        self.root = root
        self.files = Files(root)
        self.notes: list[str] = []
        self._editing = editing
        #: What was read of settings, by the file and its bytes.
        self._read: dict[str, tuple[bytes, SettingsFile]] = {}

    @classmethod
    def open(cls, path: Path | str = ".") -> Self:
        """Raises WorkspaceError when there is none."""
        root = Path(path)
        if not (root / CONFIG).is_dir():
            raise WorkspaceError(
                f"{root} is no workspace: it has no folder {CONFIG}; `backstay n8n init --workspace {root}` makes one"
            )
        return cls(root)

    @contextmanager
    def edit(self, *, dry_run: bool = False) -> Generator[Self, None, None]:
        """A fresh view, alone in the workspace, whose changes are written at the end: all, or none after an error.

        With `dry_run` nothing is written; `files.diff()` says what would be.
        """
        view = type(self)(self.root, editing=True)
        # A dry run leaves no trace, not even the lock's file in a folder that has none yet.
        if dry_run and not (self.root / PRIVATE).is_dir():
            yield view
            return
        with journal.alone(self.root, looks=dry_run) as undone:
            _tell_of(view, undone)
            yield view
            if not dry_run:
                journal.commit(self.root, view.files.changes)

    @contextmanager
    def look(self) -> Generator[Self, None, None]:
        """A fresh view that no other command changes while it is looked at."""
        if not (self.root / PRIVATE).is_dir():  # nothing was ever changed by a command
            yield type(self)(self.root)
            return
        with journal.alone(self.root, looks=True) as undone:
            view = type(self)(self.root)
            _tell_of(view, undone)
            yield view

    def checkpoint(self) -> None:
        """Inside edit(): write what has changed so far, for good. What follows may fail, or we may be killed."""
        self._check_editing()
        journal.commit(self.root, self.files.changes)
        self.files.settle()

    @property
    def changes(self) -> list[Change]:
        return self.files.all_changes

    # ── environments ──

    @property
    def environments(self) -> tuple[str, ...]:
        """Their names, sorted."""
        found = self.files.names(CONFIG, ".yml")
        return tuple(name for name in found if name not in (envs.COMMON, envs.ORDER))

    def chosen(self, names: list[str] | tuple[str, ...] | None) -> tuple[str, ...]:
        """Those that were asked for, or all. Raises WorkspaceError for one that is not there."""
        known = self.environments
        for name in names or ():
            envs.check_environment(name)
            if name not in known:
                raise WorkspaceError(f"there is no environment {name!r}: {self._known(known)}")
        if not known:
            raise WorkspaceError(f"there is no environment: {self._known(known)}")
        return tuple(dict.fromkeys(names)) if names else known

    def _known(self, known: tuple[str, ...]) -> str:
        if known:
            return f"{CONFIG} has {', '.join(known)}"
        return f"{CONFIG} has no <name>.yml; `backstay n8n init --env NAME` makes one"

    def env(self, name: str) -> dict[str, Any]:
        """An environment's settings, with what is common."""
        self.chosen([name])
        return envs.merged(self._settings(envs.COMMON).data, self._settings(name).data)

    def scopes(self, env: str) -> tuple[str, ...]:
        """The lock scopes that clean-up looks through."""
        return envs.scopes_of(self.env(env), envs.path_of(env))

    def workflow_ids(self, env: str) -> dict[str, str]:
        """Registered workflows: key and id. Those without an id yet are left out."""
        table = self.env(env).get("workflows")
        keys = [str(key) for key in table] if is_table(table) else []
        found = {key: self.entry(env, key).get("id") for key in keys}
        return {key: str(value) for key, value in found.items() if value not in (None, "")}

    def credentials(self, env: str) -> tuple[str, ...]:
        """What templates call them."""
        table = self.env(env).get("credentials")
        return tuple(table) if is_table(table) else ()

    def entry(self, env: str, key: str, table: str = "workflows") -> dict[str, Any]:
        """`workflows.<key>`, or that of another table; empty where there is none."""
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
        """The workflows that have a template."""
        return tuple(self.files.names(TEMPLATES, TEMPLATE_SUFFIX))

    def template_path(self, key: str) -> str:
        """Relative to the workspace."""
        return f"{TEMPLATES}/{envs.check_key(key)}{TEMPLATE_SUFFIX}"

    def built_path(self, env: str, key: str) -> str:
        return f"{BUILD}/{envs.check_environment(env)}/{envs.check_key(key)}{BUILT_SUFFIX}"

    def has(self, key: str) -> bool:
        return self.files.exists(self.template_path(key))

    def read(self, key: str) -> Workflow:
        """A template. Raises BadWorkflow when it is no workflow, WorkspaceError when there is none."""
        path = self.template_path(key)
        return Workflow.parse(self._content(path, key), source=path)

    def read_built(self, env: str, key: str) -> Workflow:
        path = self.built_path(env, key)
        raw = self.files.read(path)
        if raw is None:
            raise WorkspaceError(f"{path} is not there; `backstay n8n hydrate --env {env}` builds it")
        return Workflow.parse(raw, source=path)

    def _content(self, path: str, key: str) -> bytes:
        raw = self.files.read(path)
        if raw is None:
            known = ", ".join(self.keys) or "nothing"
            raise WorkspaceError(f"there is no workflow {key!r}: {path} is not there ({TEMPLATES} has {known})")
        return raw

    # ── hydrate ──

    def hydrate(self, env: str, key: str, *, strict: bool = False) -> Workflow:
        """A template with everything in its place, its id and name as the environment has them. Nothing is written."""
        self.chosen([env])
        path = self.template_path(key)
        raw = self._content(path, key)
        config = envs.path_of(env)
        if self.files.exists(envs.path_of(envs.COMMON)):
            config += f" and {envs.path_of(envs.COMMON)}"
        hydration = Hydration(env, key, path, self.env(env), self._included, config)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WorkspaceError(f"{path}: it is not UTF-8 (byte {error.start})") from error
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
        """A file that a template includes: by its path in the workspace, or beside the templates."""
        for place in (path, f"{TEMPLATES}/{path}"):
            raw = self.files.read(place)
            if raw is not None:
                try:
                    return raw.decode("utf-8").removeprefix("\ufeff")
                except UnicodeDecodeError as error:
                    raise WorkspaceError(f"{place} is not UTF-8 (byte {error.start})") from error
        raise WorkspaceError(f"there is no file {path} in the workspace")

    # ── changes, inside edit() ──

    def write(self, key: str, workflow: Workflow) -> None:
        self._write(self.template_path(key), workflow.text())

    def write_built(self, env: str, key: str, workflow: Workflow) -> None:
        self._write(self.built_path(env, key), workflow.text())

    def delete(self, key: str) -> None:
        """A template, and what was built from it."""
        self._check_editing()
        for path in (self.template_path(key), *(self.built_path(env, key) for env in self.environments)):
            if self.files.exists(path):
                self.files.delete(path)

    def set(self, env: str, path: tuple[str, ...], value: Any) -> None:
        """A setting in an environment's own file. The rest of the file stays as it is, comments too."""
        self._change(env, lambda settings: settings.set(path, value))

    def unset(self, env: str, path: tuple[str, ...]) -> None:
        self._change(env, lambda settings: settings.remove(path))

    def _change(self, env: str, change: Callable[[SettingsFile], None]) -> None:
        settings = self._settings(env)
        path = envs.path_of(env)
        del self._read[path]  # half a change is nobody's to read
        change(settings)
        text = settings.text()
        self._write(path, text)
        self._read[path] = (text.encode(), settings)

    def register(self, env: str, key: str, *, name: str, id: str = "") -> str:  # noqa: A002 - what n8n calls it
        """`workflows.<key>` in an environment. One that has an id keeps it, unless another is given. Returns the id."""
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
        """Whether it is new there."""
        scopes = self.scopes(env)
        if scope in scopes:
            return False
        self.set(env, (SCOPES,), [*scopes, scope])
        return True

    def remove_scope(self, env: str, scope: str) -> bool:
        """Whether it was there."""
        scopes = self.scopes(env)
        if scope not in scopes:
            return False
        self.set(env, (SCOPES,), [one for one in scopes if one != scope])
        return True

    @property
    def order(self) -> list[str]:
        """What is pushed first: keys, those that others call before their callers."""
        found = self._settings(envs.ORDER).data.get("order")
        if found is None:
            return []
        if not is_list(found) or not all(isinstance(key, str) for key in found):
            raise WorkspaceError(f"{envs.path_of(envs.ORDER)}: order is no list of workflow keys")
        return [str(key) for key in found]

    def put_in_order(self, key: str, *, first: bool = False) -> None:
        """Once; a workflow that others call belongs before them."""
        order = self.order
        if key not in order:
            self.set(envs.ORDER, ("order",), [key, *order] if first else [*order, key])

    def drop_from_order(self, key: str) -> None:
        order = self.order
        if key in order:
            self.set(envs.ORDER, ("order",), [one for one in order if one != key])

    def _write(self, path: str, text: str) -> None:
        self._check_editing()
        self.files.write(path, text.encode())

    def _check_editing(self) -> None:
        if not self._editing:
            raise RuntimeError("a workspace is changed inside edit()")


def _tell_of(view: Workspace, undone: list[str]) -> None:
    if undone:
        view.notes.append(f"a command was interrupted here; what it had begun is undone: {', '.join(undone)}")
