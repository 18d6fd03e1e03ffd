"""Call the scripts of a store's shards by name, after a first call that checks the number of shards."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from backstay.engine.base import StoreOperation
from backstay.engine.redis.encoder import KeyedRequest, Procedure
from backstay.engine.redis.link.protocol import ErrorReply
from backstay.engine.redis.scripts import Script
from backstay.errors import ConfigError
from backstay.hub import protocol
from backstay.job.stores.redis import keys

#: One shard keeps about one core busy, so more would only make ids longer.
MAX_SHARDS = 256

_LUA = files("backstay.job.stores.redis").joinpath("lua")
#: Folders of scripts; names are unique over all of them.
FOLDERS = ("shared", "jobs", "runs", "records", "fleet")


@cache
def _source(name: str) -> str:
    text = next(file for folder in FOLDERS if (file := _LUA.joinpath(folder, f"{name}.lua")).is_file()).read_text()
    text = re.sub(r"(?m)^-- function: (\w+) = hub/(\w+)\.lua$", lambda m: _function(m[1], m[2]), text)
    return re.sub(r"(?m)^-- include: (\w+)\.lua$", lambda m: _source(m[1]), text)


def _function(name: str, verb: str) -> str:
    """Wrap a script of the hub in a Lua function of its keys and arguments."""
    text = files("backstay.hub").joinpath(f"{verb}.lua").read_text()
    return f"local function {name}(KEYS, ARGV)\n{text}end"


@cache
def script(verb: str) -> Script:
    """Return an operation's script with its includes. The text after `-- inner` becomes a nested function, in which
    Lua creates closures faster (see `_moves.lua`).
    """
    text, inner = re.subn(r"(?m)^-- inner$", "return (function()", _source(verb))
    return Script(text + "end)()\n" * inner, keys=2)


class ShardCalls:
    """Builds script calls to the shards of a store. It does no I/O: the engine sends the requests and the generators
    receive the replies.
    """

    def __init__(self, namespace: str, prefix: str, shards: int, *, announces: bool = False) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise ConfigError(f"shards must be from 1 to {MAX_SHARDS}, got {shards!r}")
        self.shards = shards
        self.announces = self.claims_consume_hints = announces
        self.announcement_gap = 0.0
        self._prefix = prefix.encode()
        self._hint_keys = f"{protocol.hint_key(prefix, '')}%s"
        self._count = str(shards).encode()
        self._keys = [keys.shard(namespace, number) for number in range(shards)]
        self._encoded_keys = [
            (key.encode(), keys.nothing(namespace, number).encode()) for number, key in enumerate(self._keys)
        ]
        #: Whether this process has checked the number of shards.
        self._agreed = False

    def _within(
        self, shard: int, requests: Callable[[bytes], Procedure], *, reads: bool = False
    ) -> StoreOperation[Any]:
        def work(clock: bytes) -> Procedure:
            if not self._agreed:
                yield from self._call("agree", 0, clock, self._count)
                self._agreed = True
            return (yield from requests(clock))

        return StoreOperation(work, key=self._keys[self._check_shard(shard)], reads=reads)

    def _check_shard(self, shard: int) -> int:
        if not 0 <= shard < self.shards:
            raise ConfigError(f"shard {shard} does not exist: there are {self.shards} shards, numbered from 0")
        return shard

    def _packed(self, verb: str, shard: int, clock: bytes, *parts: bytes) -> bytes:
        """Pack a call as EVALSHA; `_call` repeats it as EVAL when the server does not know the script."""
        return script(verb).pack(*self._encoded_keys[shard], clock, *parts)

    def _call(self, verb: str, shard: int, clock: bytes, *parts: bytes) -> Generator[KeyedRequest, Any, Any]:
        key, nothing = self._encoded_keys[shard]
        reply = yield KeyedRequest(key, self._packed(verb, shard, clock, *parts))
        if type(reply) is ErrorReply:
            if reply.code == "NOSCRIPT":
                reply = yield KeyedRequest(key, script(verb).pack(key, nothing, clock, *parts, whole=True))
            if type(reply) is ErrorReply:
                raise self._shard_mismatch(reply) if reply.code == "SHARDS" else reply
        return reply

    def _shard_mismatch(self, refusal: ErrorReply) -> ConfigError:
        known = str(refusal).partition(" ")[2]
        return ConfigError(
            f"this namespace stores its jobs in {known} shards, but this process is configured for {self.shards}:"
            f" pass shards={known} (BACKSTAY_SHARDS={known}, `backstay --shards {known}`), or use another namespace"
        )


def pairs(items: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Group alternating names and values into pairs."""
    return zip(items[::2], items[1::2], strict=True)


def parse_ready(items: Sequence[bytes | str | int]) -> dict[str, int]:
    """Decode how many jobs became pending, by type."""
    pairs = zip(items[::2], items[1::2], strict=True)
    return {kind.decode() if isinstance(kind, bytes) else str(kind): int(n) for kind, n in pairs}
