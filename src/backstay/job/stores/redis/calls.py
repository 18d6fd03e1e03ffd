"""How a store talks to its shards: one script for each verb, by name; and what has to be agreed before the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from backstay.engine.base import Within
from backstay.engine.redis.encoder import Talk, To
from backstay.engine.redis.link.protocol import Refusal
from backstay.engine.redis.scripts import Script
from backstay.errors import ConfigError
from backstay.hub import protocol
from backstay.job.stores.redis import keys

#: More would make ids longer for nothing: a shard is a core's worth of work.
MOST_SHARDS = 256

_LUA = files("backstay.job.stores.redis").joinpath("lua")
#: Folders of scripts; names are unique over all of them.
FOLDERS = ("shared", "jobs", "runs", "records", "fleet")


@cache
def _source(name: str) -> str:
    text = next(file for folder in FOLDERS if (file := _LUA.joinpath(folder, f"{name}.lua")).is_file()).read_text()
    text = re.sub(r"(?m)^-- function: (\w+) = hub/(\w+)\.lua$", lambda m: _function(m[1], m[2]), text)
    return re.sub(r"(?m)^-- include: (\w+)\.lua$", lambda m: _source(m[1]), text)


def _function(name: str, verb: str) -> str:
    """A script of the hub as a function of its keys and arguments."""
    text = files("backstay.hub").joinpath(f"{verb}.lua").read_text()
    return f"local function {name}(KEYS, ARGV)\n{text}end"


@cache
def script(verb: str) -> Script:
    """A verb's script, with what it includes. From `-- inner` on it is a function of its own."""
    text, inner = re.subn(r"(?m)^-- inner$", "return (function()", _source(verb))
    return Script(text + "end)()\n" * inner, keys=2)


class Calls:
    """A store's way to its shards. Nothing here does I/O: conversations are the engine's to carry out."""

    def __init__(self, namespace: str, prefix: str, shards: int, *, announces: bool = False) -> None:
        if not 1 <= shards <= MOST_SHARDS:
            raise ConfigError(f"shards is a number from 1 to {MOST_SHARDS}; got {shards!r}")
        self.shards = shards
        self.announces = self.takes = announces
        self.gap = 0.0
        self._prefix = prefix.encode()
        self._hint_keys = f"{protocol.hint_key(prefix, '')}%s"
        self._count = str(shards).encode()
        self._keys = [keys.shard(namespace, number) for number in range(shards)]
        self._wire_keys = [
            (key.encode(), keys.nothing(namespace, number).encode()) for number, key in enumerate(self._keys)
        ]
        #: Whether this process has asked.
        self._agreed = False

    def _within(self, shard: int, talk: Callable[[bytes], Talk], *, reads: bool = False) -> Within[Any]:
        def work(clock: bytes) -> Talk:
            if not self._agreed:
                yield from self._call("agree", 0, clock, self._count)
                self._agreed = True
            return (yield from talk(clock))

        return Within(work, key=self._keys[self._checked(shard)], reads=reads)

    def _checked(self, shard: int) -> int:
        if not 0 <= shard < self.shards:
            raise ConfigError(f"there are {self.shards} shards, from 0 on; there is no shard {shard}")
        return shard

    def _packed(self, verb: str, shard: int, clock: bytes, *parts: bytes) -> bytes:
        """What a call says first."""
        return script(verb).pack(*self._wire_keys[shard], clock, *parts)

    def _call(self, verb: str, shard: int, clock: bytes, *parts: bytes) -> Generator[To, Any, Any]:
        key, nothing = self._wire_keys[shard]
        reply = yield To(key, self._packed(verb, shard, clock, *parts))
        if type(reply) is Refusal:
            if reply.code == "NOSCRIPT":
                reply = yield To(key, script(verb).pack(key, nothing, clock, *parts, whole=True))
            if type(reply) is Refusal:
                raise self._disagree(reply) if reply.code == "SHARDS" else reply
        return reply

    def _disagree(self, refusal: Refusal) -> ConfigError:
        known = str(refusal).partition(" ")[2]
        return ConfigError(
            f"the jobs of this namespace are divided into {known} shards, and this process was told {self.shards}:"
            f" pass shards={known} (BACKSTAY_SHARDS={known}, `backstay --shards {known}`), or use another namespace"
        )


def flat(items: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Names and values in turn, as pairs."""
    return zip(items[::2], items[1::2], strict=True)


def ready(items: Sequence[bytes | str | int]) -> dict[str, int]:
    """What became pending, by type."""
    pairs = zip(items[::2], items[1::2], strict=True)
    return {kind.decode() if isinstance(kind, bytes) else str(kind): int(n) for kind, n in pairs}
