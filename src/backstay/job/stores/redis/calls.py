"""Build calls of the Lua scripts by name. The first call of a process checks that the namespace has as many shards as
the process is configured for.
"""

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

#: A shard can keep about one core of a Redis server busy, so more shards than this bring no speed, only longer job ids.
MAX_SHARDS = 256

_LUA = files("backstay.job.stores.redis").joinpath("lua")
#: The folders that contain scripts. No two of them contain scripts of the same name, so the name alone finds a script.
FOLDERS = ("shared", "jobs", "cross_shard", "runs", "records", "fleet", "rates")


@cache
def _read_source(name: str) -> str:
    """Read a script and insert the files that its `-- include:` and `-- function:` lines name."""
    text = next(file for folder in FOLDERS if (file := _LUA.joinpath(folder, f"{name}.lua")).is_file()).read_text()
    text = re.sub(r"(?m)^-- function: (\w+) = hub/(\w+)\.lua$", lambda m: _wrap_as_function(m[1], m[2]), text)
    return re.sub(r"(?m)^-- include: (\w+)\.lua$", lambda m: _read_source(m[1]), text)


def _wrap_as_function(name: str, verb: str) -> str:
    """Return the text of a Lua function `name` that contains the script `hub/<verb>.lua`, so that other scripts can
    call it. Its two parameters are named KEYS and ARGV, as the script expects.
    """
    text = files("backstay.hub").joinpath(f"{verb}.lua").read_text()
    return f"local function {name}(KEYS, ARGV)\n{text}end"


@cache
def script(verb: str) -> Script:
    """Return the script of a store operation, with the files that it includes. The text after `-- inner` becomes a
    nested function, in which Lua creates closures faster (`_transitions.lua` explains why).
    """
    text, inner = re.subn(r"(?m)^-- inner$", "return (function()", _read_source(verb))
    return Script(text + "end)()\n" * inner, keys=2)


class ShardCalls:
    """Builds script calls to the shards of a store, as generators that yield requests and receive replies. It does no
    I/O itself: the engine sends the requests.
    """

    def __init__(self, namespace: str, prefix: str, shards: int, *, announces: bool = False) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise ConfigError(f"shards must be from 1 to {MAX_SHARDS}, got {shards!r}")
        self.shards = shards
        self.announces = self.claims_consume_hints = announces
        self.announcement_gap = 0.0
        self._prefix = prefix.encode()
        self._hint_keys = f"{protocol.hint_key(prefix, '')}%s"
        self._shard_count = str(shards).encode()
        self._keys = [keys.shard(namespace, number) for number in range(shards)]
        self._encoded_keys = [
            (key.encode(), keys.absent(namespace, number).encode()) for number, key in enumerate(self._keys)
        ]
        #: Whether this process has compared its number of shards with the stored one.
        self._shards_checked = False

    def _operation(
        self, shard: int, requests: Callable[[bytes], Procedure], *, reads: bool = False
    ) -> StoreOperation[Any]:
        """Wrap a generator of requests as an operation of the engine on a shard. `reads`: the operation changes
        nothing.
        """

        def work(clock: bytes) -> Procedure:
            if not self._shards_checked:
                yield from self._call("check_shards", 0, clock, self._shard_count)
                self._shards_checked = True
            return (yield from requests(clock))

        return StoreOperation(work, key=self._keys[self._check_shard(shard)], reads=reads)

    def _check_shard(self, shard: int) -> int:
        if not 0 <= shard < self.shards:
            raise ConfigError(f"shard {shard} does not exist: there are {self.shards} shards, numbered from 0")
        return shard

    def _pack_call(self, verb: str, shard: int, clock: bytes, *parts: bytes) -> bytes:
        """Encode a call as EVALSHA. If the server does not know the script, `_call` sends it again as EVAL."""
        return script(verb).pack(*self._encoded_keys[shard], clock, *parts)

    def _call(self, verb: str, shard: int, clock: bytes, *parts: bytes) -> Generator[KeyedRequest, Any, Any]:
        """Call a script and return its reply. Raises ConfigError if the namespace has another number of shards than
        this process is configured for. Raises any other error reply as it is.
        """
        key, absent = self._encoded_keys[shard]
        reply = yield KeyedRequest(key, self._pack_call(verb, shard, clock, *parts))
        if type(reply) is ErrorReply:
            if reply.code == "NOSCRIPT":
                reply = yield KeyedRequest(key, script(verb).pack(key, absent, clock, *parts, whole=True))
            if type(reply) is ErrorReply:
                raise self._shard_mismatch(reply) if reply.code == "SHARDS" else reply
        return reply

    def _shard_mismatch(self, refusal: ErrorReply) -> ConfigError:
        known = str(refusal).partition(" ")[2]
        return ConfigError(
            f"this namespace stores its jobs in {known} shards, but this process is configured for {self.shards}:"
            f" pass shards={known} (BACKSTAY_SHARDS={known}, `backstay --shards {known}`), or use another namespace"
        )


def group_pairs(items: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Group a flat list of alternating names and values into pairs."""
    return zip(items[::2], items[1::2], strict=True)


def parse_ready(items: Sequence[bytes | str | int]) -> dict[str, int]:
    """Decode a flat list of job types and numbers: how many jobs of each type became pending."""
    counts = zip(items[::2], items[1::2], strict=True)
    return {kind.decode() if isinstance(kind, bytes) else str(kind): int(n) for kind, n in counts}
