"""Environment settings: `common.yml` is the base, and an environment's own file overrides it."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping
from typing import Any

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_mapping

CONFIG = "n8n-config"
COMMON = "common"
ORDER = "deployment_order"
SCOPES = "lockScopes"

#: The longest workflow id that n8n's database accepts.
LONGEST_ID = 16
#: The prefix of generated ids. A file with such an id can be imported into n8n; a push replaces it with n8n's own id.
LOCAL = "local-"

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def check_key(key: str, what: str = "workflow key") -> str:
    """Return the key when it is safe in a file path and in a placeholder such as `workflows.<key>.id`; otherwise raise
    WorkspaceError.
    """
    if not _KEY.fullmatch(key):
        raise WorkspaceError(
            f"{key!r} is not a valid {what}: use up to 100 letters, digits, _ and -, starting with a letter or digit"
        )
    return key


def check_environment(name: str) -> str:
    check_key(name, "environment")
    if name in (COMMON, ORDER):
        raise WorkspaceError(f"{CONFIG}/{name}.yml is not an environment; choose another name")
    return name


def path_of(name: str) -> str:
    """Return the settings file of an environment, or of the common settings."""
    return f"{CONFIG}/{name}.yml"


def local_id() -> str:
    letters = string.ascii_letters + string.digits
    return LOCAL + "".join(secrets.choice(letters) for _ in range(LONGEST_ID - len(LOCAL)))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`. Mappings are merged recursively; other values are replaced."""
    made = dict(base)
    for key, value in over.items():
        below = made.get(key)
        if is_mapping(below) and is_mapping(value):
            made[key] = merge(below, value)
        elif not (is_mapping(below) and value is None):  # an empty `workflows:` removes nothing
            made[key] = value
    return made


def look_up(settings: Any, path: str) -> Any:
    """Return the value at a dotted path such as `workflows.a.id`; a number is an index into a list. Raise LookupError
    with the missing part.
    """
    for part in path.split("."):
        if is_mapping(settings) and part in settings:
            settings = settings[part]
        elif is_list(settings) and part.isdecimal() and int(part) < len(settings):
            settings = settings[int(part)]
        else:
            raise LookupError(part)
    return settings


def scopes_of(settings: Mapping[str, Any], source: str) -> tuple[str, ...]:
    found = settings.get(SCOPES)
    if found is None:
        return ()
    if not is_list(found) or not all(isinstance(one, (str, int)) and not isinstance(one, bool) for one in found):
        raise WorkspaceError(f"{source}: {SCOPES} must be a list of strings")
    return tuple(str(scope) for scope in found)


def entry_of(settings: Mapping[str, Any], table: str, key: str) -> dict[str, Any]:
    """Return the entry `<table>.<key>` of the settings, such as `workflows.<key>` or `credentials.<key>`; an empty dict
    when it is absent.
    """
    entries = settings.get(table)
    found = entries.get(key) if is_mapping(entries) else None
    return dict(found) if is_mapping(found) else {}
