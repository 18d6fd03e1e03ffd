"""Every Redis key of Backstay comes from here.

`<namespace>:<room>:{<name>}`: all keys of one name share a hash tag, names spread over all slots of a Cluster.
Braces and percent signs in names are escaped, so no name can end the tag early or look like another key.
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
    """A machine's record."""
    return f"{namespace}:{room}:{{{escape(name)}}}"


@lru_cache(maxsize=1024)
def wire_state(namespace: str, room: str, name: str) -> bytes:
    """The same as it travels. Names come again: at least once to take and once to give back."""
    return state(namespace, room, name).encode()


@lru_cache(maxsize=1024)
def wire_body(namespace: str, room: str, name: str) -> bytes:
    """What is kept beside a machine's record, in the record's own slot."""
    return f"{namespace}:{room}-body:{{{escape(name)}}}".encode()


def tag(namespace: str, room: str, tag: str) -> str:
    """The set of names under a tag."""
    return f"{namespace}:{room}-tag:{{{escape(tag)}}}"


def pattern(namespace: str, room: str, prefix: str) -> str:
    """What SCAN matches for names that start with `prefix`."""
    return _GLOB.sub(r"\\\g<0>", f"{namespace}:{room}:{{{escape(prefix)}") + "*"


def name_of(namespace: str, room: str, key: str) -> str:
    """The name in a state key."""
    return unescape(key[len(namespace) + len(room) + 3 : -1])


def inbox(namespace: str, process: str) -> str:
    """The channel on which one process is woken."""
    return f"{namespace}:inbox:{process}"
