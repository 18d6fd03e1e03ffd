"""Lua scripts by hash. The hash is the version, so old and new processes work side by side."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from backstay.engine.base import Command, Room
from backstay.engine.redis.link.protocol import pack


class Script:
    """EVALSHA with its constant head packed once; EVAL for a server that has not seen the script."""

    __slots__ = ("_evalsha", "_hash", "_whole", "sha")

    def __init__(self, source: str, keys: int = 1) -> None:
        body = source.encode()
        self.sha = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        self._evalsha = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%d\r\n" % (self.sha.encode(), keys)
        self._hash = (b"EVALSHA", self.sha.encode(), keys)
        self._whole = (b"EVAL", body, keys)

    def call(self, key: bytes, arg: bytes) -> bytes:
        """The hot path: one key, one argument."""
        return b"*5\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (self._evalsha, len(key), key, len(arg), arg)

    def call_beside(self, key: bytes, beside: bytes, arg: bytes) -> bytes:
        """The same for rooms that keep something beside their records."""
        head = b"*6\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n" % (
            self._evalsha,
            len(key),
            key,
            len(beside),
            beside,
            len(arg),
        )
        return head + arg + b"\r\n"

    def pack(self, *parts: bytes, whole: bool = False) -> bytes:
        """The keys and any arguments; `whole` sends the source instead of the hash."""
        return pack(*(self._whole if whole else self._hash), *parts)


@cache
def of_command(room: Room[Any], command: type[Command]) -> Script:
    return Script(room.script(command), room.keys)


@cache
def own(name: str) -> Script:
    """A script of the engine itself."""
    return Script(files("backstay.engine.redis").joinpath("lua", f"{name}.lua").read_text())


@cache
def of_hub(name: str) -> Script:
    """A script of the hub."""
    return Script(files("backstay.hub").joinpath(f"{name}.lua").read_text())
