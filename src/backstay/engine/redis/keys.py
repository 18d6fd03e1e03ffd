"""Build the Redis keys of the records of locks, limits and idempotent calls, and of the tags that group their names.
Also build the names of inboxes: the Pub/Sub channels on which processes are woken.

`<namespace>:<room>:{<name>}`: all keys of one name share a hash tag; names spread over all slots of a Cluster.
Braces and percent signs in names are escaped, so no name can end the tag early or collide with another key.
"""

from __future__ import annotations

import re
from functools import lru_cache

_GLOB = re.compile(r"[*?\[\]\\^-]")


def escape(name: str) -> str:
    if "{" not in name and "}" not in name and "%" not in name:
        return name
    return name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


def unescape(text: str) -> str:
    return text.replace("%7D", "}").replace("%7B", "{").replace("%25", "%")


def state(namespace: str, room: str, name: str) -> str:
    """Return the key of the record of a name in a room."""
    return f"{namespace}:{room}:{{{escape(name)}}}"


@lru_cache(maxsize=1024)
def wire_state(namespace: str, room: str, name: str) -> bytes:
    """Return the encoded key of a record. Cached, because a name recurs: at least for one acquire and one release."""
    return state(namespace, room, name).encode()


@lru_cache(maxsize=1024)
def wire_body(namespace: str, room: str, name: str) -> bytes:
    """Return the key of a record's body, a large value that is stored beside the record, in the same Cluster slot."""
    return f"{namespace}:{room}-body:{{{escape(name)}}}".encode()


def tag(namespace: str, room: str, tag: str) -> str:
    """Return the key of the set that holds all names with this tag (`Tag` in engine/base.py)."""
    return f"{namespace}:{room}-tag:{{{escape(tag)}}}"


def pattern(namespace: str, room: str, prefix: str) -> str:
    """Return the SCAN pattern for names that start with `prefix`."""
    return _GLOB.sub(r"\\\g<0>", f"{namespace}:{room}:{{{escape(prefix)}") + "*"


def name_of(namespace: str, room: str, key: str) -> str:
    """Return the name in a record's key."""
    return unescape(key[len(namespace) + len(room) + 3 : -1])


def inbox(namespace: str, process: str) -> str:
    """Return the Pub/Sub channel on which one process receives the hints that wake its waiters."""
    return f"{namespace}:inbox:{process}"
