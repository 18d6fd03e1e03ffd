"""Lua scripts, called by the hash of their source. A changed script has another hash, so processes with old and new
versions of Backstay can use one server.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from backstay.engine.base import Command, Room
from backstay.engine.redis.link.protocol import pack


class Script:
    """A Lua script, which encodes its own calls. A call is an EVALSHA; the part that is the same in all calls is
    encoded once. A server that does not have the script gets its source with EVAL.
    """

    __slots__ = ("_evalsha", "_hash", "_whole", "sha")

    def __init__(self, source: str, keys: int = 1) -> None:
        body = source.encode()
        self.sha = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        self._evalsha = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%d\r\n" % (self.sha.encode(), keys)
        self._hash = (b"EVALSHA", self.sha.encode(), keys)
        self._whole = (b"EVAL", body, keys)

    def call(self, key: bytes, arg: bytes) -> bytes:
        """Encode a call with one key and one argument (the hot path)."""
        return b"*5\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (self._evalsha, len(key), key, len(arg), arg)

    def call_with_body(self, key: bytes, body: bytes, arg: bytes) -> bytes:
        """Encode a call with two keys and one argument. `key` is the key of the record. `body` is the key of the large
        value that is stored beside the record, such as the outcome of an idempotent call.
        """
        head = b"*6\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n" % (
            self._evalsha,
            len(key),
            key,
            len(body),
            body,
            len(arg),
        )
        return head + arg + b"\r\n"

    def pack(self, *parts: bytes, whole: bool = False) -> bytes:
        """Encode a call. `parts` are the keys and then any arguments. With `whole`, the call contains the script's
        source (EVAL) instead of its hash (EVALSHA).
        """
        return pack(*(self._whole if whole else self._hash), *parts)


@cache
def command_script(room: Room[Any], command: type[Command]) -> Script:
    """Load the script of a machine command."""
    return Script(room.script(command), room.keys)


@cache
def engine_script(name: str) -> Script:
    """Load a script of the engine itself."""
    return Script(files("backstay.engine.redis").joinpath("lua", f"{name}.lua").read_text())


@cache
def hub_script(name: str) -> Script:
    """Load a script of the hub."""
    return Script(files("backstay.hub").joinpath(f"{name}.lua").read_text())
