"""Create n8n credentials from environment variables: typed by n8n's schema, never shown and never stored in the
workspace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.workspace import environments as envs
from backstay.n8n.workspace.workspace import Workspace

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YES, _NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
#: The prefix of Backstay's access tokens. If the value of an `Authorization` header credential begins with it,
#: `Bearer ` is put before the value, because n8n sends header values unchanged.
_TOKEN = "bst_"  # noqa: S105 - how tokens begin, not one of them


@dataclass(frozen=True, slots=True)
class CredentialSchema:
    """The fields of a credential type: their types (`string`, `number`, `boolean`), defaults, and which are needed."""

    types: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    required: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CredentialSchema:
        """Read the JSON Schema that n8n's API returns."""
        properties, required = given.get("properties"), given.get("required")
        types = {
            name: str(one.get("type", "string")) if is_mapping(one) else "string"
            for name, one in (properties.items() if is_mapping(properties) else ())
        }
        return cls(types, required=tuple(str(one) for one in required) if is_list(required) else ())


#: The types that the primitives use, known without a request. n8n rejects a Redis credential without `ssl`.
KNOWN = {
    "redis": CredentialSchema(
        {
            "host": "string",
            "port": "number",
            "user": "string",
            "password": "string",
            "database": "number",
            "ssl": "boolean",
            "disableTlsVerification": "boolean",
        },
        {"port": 6379, "database": 0, "ssl": False},
        ("host",),
    ),
    "httpHeaderAuth": CredentialSchema({"name": "string", "value": "string"}, {"name": "Authorization"}, ("value",)),
}


@dataclass(frozen=True, slots=True)
class FieldSources:
    """The environment variable that each field of a credential is read from."""

    variables: Mapping[str, str]

    @classmethod
    def parse(cls, given: list[str], schema: CredentialSchema) -> FieldSources:
        """Parse the option --env-vars: `field=VARIABLE`, or only a variable whose name ends with the field's name, as
        REDIS_HOST for `host`.
        """
        found: dict[str, str] = {}
        for part in (one.strip() for text in given for one in text.split(",")):
            if not part:
                continue
            name, equals, variable = part.rpartition("=")
            name, variable = name.strip(), variable.strip()
            if not _VARIABLE.fullmatch(variable):
                raise WorkspaceError("--env-vars takes comma-separated FIELD=VARIABLE or VARIABLE, not values")
            if not equals:
                name = _guess_field(variable, schema)
            if schema.types and name not in schema.types:
                raise WorkspaceError(f"unknown field {name!r}; the type has {', '.join(schema.types)}")
            if name in found:
                raise WorkspaceError(f"the field {name} is given twice")
            found[name] = variable
        return cls(found)

    def values(self, schema: CredentialSchema, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the credential's data. Raise WorkspaceError for a missing or invalid value, without quoting it."""
        made = dict(schema.defaults)
        for name, variable in self.variables.items():
            if variable not in variables:
                raise WorkspaceError(f"{name}: the variable {variable} is not set")
            made[name] = _convert(variables[variable], schema.types.get(name, "string"), f"{name} ({variable})")
        missing = [name for name in schema.required if name not in made]
        if missing:
            raise WorkspaceError(f"{', '.join(missing)}: required; pass --env-vars {missing[0]}=VARIABLE")
        value = made.get("value")
        if made.get("name") == "Authorization" and isinstance(value, str) and value.startswith(_TOKEN):
            made["value"] = f"Bearer {value}"
        return made

    def describe(self, schema: CredentialSchema) -> dict[str, str]:
        """Return where each value comes from, for display, without the values."""
        made = {name: repr(value) for name, value in schema.defaults.items()}
        return made | {
            name: f"<{variable}, {schema.types.get(name, 'string')}>" for name, variable in self.variables.items()
        }


def _guess_field(variable: str, schema: CredentialSchema) -> str:
    plain = variable.replace("_", "").lower()
    fits = sorted((name for name in schema.types if plain.endswith(name.lower())), key=len)
    if not fits:
        raise WorkspaceError(
            f"{variable} matches no field: use FIELD={variable} ({', '.join(schema.types) or 'FIELD'})"
        )
    return fits[-1]


def _convert(text: str, kind: str, what: str) -> Any:
    if kind in ("number", "integer"):
        try:
            number = float(text)
            return int(number) if number == int(number) else number
        except (ValueError, OverflowError):
            raise WorkspaceError(f"{what} is not a number") from None
    if kind == "boolean":
        if text.strip().lower() in _YES | _NO:
            return text.strip().lower() in _YES
        raise WorkspaceError(f"{what} is neither true nor false")
    return text


def variables_of(workspace: Workspace, env: str) -> dict[str, str]:
    """Return the process's variables, which override those of `n8n-config/.env.<env>`. Never commit that file."""
    raw = workspace.files.read(f"{envs.CONFIG}/.env.{envs.check_environment(env)}")
    found: dict[str, str] = {}
    for line in (raw or b"").decode("utf-8", errors="replace").splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if equals and _VARIABLE.fullmatch(name):
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name] = value[1:-1] if quoted else value
    return {**found, **os.environ}


def is_linked(entry: Mapping[str, Any]) -> bool:
    """Whether n8n assigned the id in this entry of the settings. Otherwise the id is missing, or Backstay generated it
    (`local-…`).
    """
    known = str(entry.get("id") or "")
    return bool(known) and not known.startswith(envs.LOCAL)


def check_type(entry: Mapping[str, Any], key: str, kind: str) -> None:
    if is_linked(entry) and entry.get("type") not in (None, "", kind):
        raise WorkspaceError(f"credentials.{key} already has the type {entry['type']}, not {kind}; use another --key")


def link(workspace: Workspace, env: str, key: str, *, id: str, name: str, type: str) -> None:  # noqa: A002 - what n8n calls it
    """Write a credential's id, name and type to `credentials.<key>` in an environment's settings. Call it inside
    `workspace.edit()`.
    """
    before = workspace.entry(env, key, "credentials")
    wanted = {"id": id, "name": name, "type": type}
    if not before:
        workspace.set(env, ("credentials", key), wanted)
        return
    for part, value in wanted.items():
        if before.get(part) != value:
            workspace.set(env, ("credentials", key, part), value)
