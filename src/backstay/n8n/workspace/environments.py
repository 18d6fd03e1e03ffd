"""What the environments of a workspace say: `common.yml` is the base, an environment's own file wins."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping
from typing import Any

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_table

CONFIG = "n8n-config"
COMMON = "common"
ORDER = "deployment_order"
SCOPES = "lockScopes"

#: n8n's database keeps no longer id for a workflow.
LONGEST_ID = 16
#: Ids that were made up here. n8n gives another when the thing is made through its API; until then imports work.
LOCAL = "local-"

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def check_key(key: str, what: str = "workflow key") -> str:
    """A name that is safe in a path and in a dotted placeholder."""
    if not _KEY.fullmatch(key):
        raise WorkspaceError(
            f"{key!r} is no {what}: letters, digits, _ and -, beginning with a letter or a digit, 100 at most"
        )
    return key


def check_environment(name: str) -> str:
    check_key(name, "environment")
    if name in (COMMON, ORDER):
        raise WorkspaceError(f"{CONFIG}/{name}.yml is not an environment; call it something else")
    return name


def path_of(name: str) -> str:
    """The file of an environment, or of what is common."""
    return f"{CONFIG}/{name}.yml"


def local_id() -> str:
    letters = string.ascii_letters + string.digits
    return LOCAL + "".join(secrets.choice(letters) for _ in range(LONGEST_ID - len(LOCAL)))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged by key; everything else of `over` takes the place of what is in `base`."""
    made = dict(base)
    for key, value in over.items():
        below = made.get(key)
        if is_table(below) and is_table(value):
            made[key] = merged(below, value)
        elif not (is_table(below) and value is None):  # `workflows:` without entries takes nothing away
            made[key] = value
    return made


def look_up(settings: Any, path: str) -> Any:
    """What is at a dotted path. Raises LookupError. Numbers count into lists."""
    for part in path.split("."):
        if is_table(settings) and part in settings:
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
        raise WorkspaceError(f"{source}: {SCOPES} is no list of texts")
    return tuple(str(scope) for scope in found)


def entry_of(settings: Mapping[str, Any], table: str, key: str) -> dict[str, Any]:
    """`workflows.<key>` or `credentials.<key>`; empty where there is none."""
    entries = settings.get(table)
    found = entries.get(key) if is_table(entries) else None
    return dict(found) if is_table(found) else {}
