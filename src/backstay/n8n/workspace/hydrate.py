"""Resolve placeholders in templates: `{{@:KIND:WHAT}}`.

| kind | replaced by |
|---|---|
| `env` | a setting, by its dotted path |
| `uuid` | a UUID that is deterministic for the name, workflow and environment |
| `txt` `html` `js` `py` | a file's text, by its path in the workspace |
| `json` | a file's JSON, on one line |

Inside a JSON string the value is inserted as escaped text; elsewhere it is inserted as a JSON value.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.workspace.environments import SCOPES, look_up, scopes_of
from backstay.n8n.workspace.json_layout import Layout
from backstay.n8n.workspace.json_layout import read as read_json

FILES = ("txt", "json", "html", "js", "py")
KINDS = ("env", "uuid", *FILES)
PLACEHOLDER = re.compile(r"\{\{\s*@:([A-Za-z]+):([^{}]*?)\s*\}\}")
#: Matches the start of a placeholder. Where it still matches after hydration, the placeholder was malformed.
_ATTEMPT = re.compile(r"\{\{\s*@")
_STRING_OR_PLACEHOLDER = re.compile(rf'"(?:[^"\\]|\\.)*"|{PLACEHOLDER.pattern}', re.DOTALL)

#: The setting with the Backstay server's URL; templates append paths to it.
_ADDRESS = "backstay.url"
_WEB = re.compile(r"https?://[^\s/?#]+(?:/[^\s?#]*)?")

#: The namespace of all generated UUIDs.
_UUID_NAMESPACE = uuid.UUID("6f1d4f0e-6a53-5d5e-9f1f-0b7a3c4f2a10")
#: The longest chain of files of which each includes the next one. For a file that includes itself there is another
#: error message.
DEEPEST = 10
_COMPACT = Layout(indent=None, comma=",", colon=":", after="")


@dataclass(slots=True)
class Hydration:
    """Resolves the placeholders of one template for one environment. `warnings`: empty values and malformed
    placeholders.
    """

    env: str
    key: str
    #: The template's path, for messages.
    source: str
    settings: Mapping[str, Any]
    #: Reads a workspace file by its path; raises WorkspaceError.
    file: Callable[[str], str]
    #: The settings files, for messages.
    config: str
    warnings: list[str] = field(default_factory=list[str])

    def template(self, text: str) -> str:
        """Return the template's JSON text with all placeholders resolved."""
        made = _STRING_OR_PLACEHOLDER.sub(self._resolve_piece, text)
        if _ATTEMPT.search(made):
            self._warn_of_malformed(made)
        return made

    def _resolve_piece(self, found: re.Match[str]) -> str:
        if not found[0].startswith('"'):
            return _COMPACT.write(self._value(found[1], found[2], ()))
        if "@:" not in found[0]:
            return found[0]
        return PLACEHOLDER.sub(lambda one: _escape(self._text(one[1], one[2], ())), found[0])

    def _resolve_included(self, text: str, chain: tuple[str, ...]) -> str:
        """Resolve the placeholders in the text of an included file. `chain`: the paths of the files that include one
        another, from the one that the template includes to this one.
        """
        return PLACEHOLDER.sub(lambda one: self._text(one[1], one[2], chain), text)

    def _text(self, kind: str, what: str, chain: tuple[str, ...]) -> str:
        value = self._value(kind, what, chain)
        return value if isinstance(value, str) else _COMPACT.write(value)

    def _value(self, kind: str, what: str, chain: tuple[str, ...]) -> Any:
        what = what.strip()
        shown = f"{{{{@:{kind}:{what}}}}}"
        where = chain[-1] if chain else self.source
        if kind not in KINDS:
            raise WorkspaceError(f"{where}: {shown} has an unknown kind (known: {', '.join(KINDS)})")
        if not what:
            raise WorkspaceError(f"{where}: {shown} does not name anything")
        if kind == "env":
            return self._setting(what, shown, where)
        if kind == "uuid":
            return str(uuid.uuid5(_UUID_NAMESPACE, json.dumps([self.env, self.key, what])))
        if what in chain:
            raise WorkspaceError(f"{where}: {shown} includes itself ({' → '.join((*chain, what))})")
        if len(chain) >= DEEPEST:
            raise WorkspaceError(f"{where}: {shown} exceeds the include depth of {DEEPEST} files")
        try:
            text = self.file(what)
        except WorkspaceError as error:
            raise WorkspaceError(f"{where}: {shown}: {error}") from error
        text = self._resolve_included(text, (*chain, what))
        return _parse_json(text, f"{where}: {shown}") if kind == "json" else text

    def _setting(self, path: str, shown: str, where: str) -> Any:
        try:
            value = look_up(self.settings, path)
        except LookupError as error:
            if path == SCOPES:
                return []
            raise WorkspaceError(f"{where}: {shown}: no {error.args[0]!r} of {path} in {self.config}") from None
        if value is None or value == "":
            if path == SCOPES:
                return []
            self.warnings.append(f"{where}: {shown} is empty in {self.config}")
            return ""
        if path == SCOPES:
            return list(scopes_of(self.settings, self.config))
        if path == _ADDRESS:
            if not _WEB.fullmatch(str(value)):
                raise WorkspaceError(f"{where}: {shown} must be an http:// or https:// URL in {self.config}")
            return str(value).rstrip("/")
        return value

    def _warn_of_malformed(self, made: str) -> None:
        for found in _ATTEMPT.finditer(made):
            shown = made[found.start() : found.start() + 40].partition("\n")[0]
            self.warnings.append(f"{self.source}: {shown!r} looks like a placeholder but is not valid")


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _parse_json(text: str, where: str) -> Any:
    try:
        return read_json(text, where)[0]
    except ValueError as error:
        raise WorkspaceError(f"{error}") from error


def find_placeholders(data: Any) -> set[tuple[str, str]]:
    """Return every placeholder in a template's data as (kind, name)."""
    found: set[tuple[str, str]] = set()
    if is_mapping(data):
        for key, value in data.items():
            found |= find_placeholders(key) | find_placeholders(value)
    elif is_list(data):
        for value in data:
            found |= find_placeholders(value)
    elif isinstance(data, str):
        found |= {(one[1], one[2].strip()) for one in PLACEHOLDER.finditer(data)}
    return found
