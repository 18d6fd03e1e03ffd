"""Guarded Redis keys: a write is rejected if a later holder of the lock, one with a higher fence, has written the key.

The value is a plain string that any client reads with GET. The highest fence that has written it is stored in a second
key.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from backstay.errors import ConfigError
from backstay.runtime import validation
from backstay.runtime.flows import maybe_await, run
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.guard.base import Guard

Value = bytes | str | int | float

#: Seconds for which the fence of a guarded key is stored after its value has expired. The engine keeps the last fence
#: of an idle lock for a day, too.
FENCE_LIFE = 86400.0
#: Numbers the writes with one fence, so that the script recognizes a delayed duplicate of an earlier write. A fence
#: belongs to one process, so a counter per process is enough.
_write_numbers = itertools.count(1)


@cache
def read_source(verb: str) -> str:
    """Return the Lua source of "set" or "delete", with the files that it includes."""
    text = files("backstay.guard").joinpath(f"{verb}.lua").read_text()
    return re.sub(r"(?m)^-- include: (\w+)\.lua$", lambda m: read_source(m[1]), text)


def fence_key(key: str) -> str:
    """Return the key under which the fence of `key` is stored, in the same Cluster slot: `{key}:fence`, or `key:fence`
    if the key has a hash tag.
    """
    if re.search(r"\{[^}]+\}", key):
        return f"{key}:fence"
    if "}" in key:
        raise ConfigError(
            f"{key!r} contains a brace but no hash tag, so no other key maps to its slot; try '{{user:7}}:x'"
        )
    return f"{{{key}}}:fence"


class BaseRedisGuard:
    """The base of both APIs. Each write is one Lua script, run through the caller's client."""

    __slots__ = ("_client", "_guard")

    def __init__(self, guard: Guard, client: Any) -> None:
        self._guard = guard
        self._client = client

    async def _set(self, key: str, value: Value, ttl: Duration | None) -> None:
        life = 0.0 if ttl is None else validation.to_seconds(ttl, "ttl")
        await self._run("set", key, _millis(life), _millis(life + FENCE_LIFE if life else 0.0), value)

    async def _delete(self, key: str) -> None:
        await self._run("delete", key, _millis(FENCE_LIFE))

    async def _run(self, verb: str, key: str, *args: Value) -> None:
        guard = self._guard
        keys = [validation.check_name(key, "key"), fence_key(key)]
        guard.check()
        script = self._client.register_script(read_source(verb))
        newer = await maybe_await(script(keys=keys, args=[guard.fence, next(_write_numbers), *args]))
        if newer:
            guard.admit(int(newer))


class RedisGuard(BaseRedisGuard):
    """The blocking API, for `redis.Redis`."""

    __slots__ = ()

    def set(self, key: str, value: Value, *, ttl: Duration | None = None) -> None:
        """Set a key, or raise StaleFence if a later holder has written it. ttl: seconds until the value expires; its
        fence expires a day later.
        """
        run(self._set(key, value, ttl))

    def delete(self, key: str) -> None:
        """Delete a key, or raise StaleFence if a later holder has written it. The fence is kept for a day, so that a
        delayed write of an earlier holder cannot restore the key.
        """
        run(self._delete(key))


class AsyncRedisGuard(BaseRedisGuard):
    """The async API, for `redis.asyncio.Redis`."""

    __slots__ = ()

    async def set(self, key: str, value: Value, *, ttl: Duration | None = None) -> None:
        """Set a key, or raise StaleFence if a later holder has written it. ttl: seconds until the value expires; its
        fence expires a day later.
        """
        await self._set(key, value, ttl)

    async def delete(self, key: str) -> None:
        """Delete a key, or raise StaleFence if a later holder has written it. The fence is kept for a day, so that a
        delayed write of an earlier holder cannot restore the key.
        """
        await self._delete(key)


def _millis(seconds: float) -> int:
    return -(-validation.to_micros(seconds) // 1000) if seconds else 0
