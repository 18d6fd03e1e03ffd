"""Guarded Redis keys. The value is a plain string, so GET reads it as ever; its fence lives in a key beside it."""

from __future__ import annotations

import itertools
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from backstay.errors import ConfigError
from backstay.runtime import validation
from backstay.runtime.flows import run
from backstay.runtime.maybe_await import settled
from backstay.runtime.validation import Duration

if TYPE_CHECKING:
    from backstay.guard.base import Guard

Value = bytes | str | int | float

#: A fence outlives its value by a day: as long as the engine itself remembers a fence at least.
FENCE_LIFE = 86400.0
#: A holder's writes in order. A fence belongs to one process, so the process's own count is enough.
_turns = itertools.count(1)


@cache
def source(verb: str) -> str:
    """A script, with what it includes."""
    text = files("backstay.guard").joinpath(f"{verb}.lua").read_text()
    return re.sub(r"(?m)^-- include: (\w+)\.lua$", lambda m: source(m[1]), text)


def fence_key(key: str) -> str:
    """Where a key's fence lives: `{key}:fence`, in the slot of the key itself; `…{tag}…:fence` when it has a tag."""
    if re.search(r"\{[^}]+\}", key):
        return f"{key}:fence"
    if "}" in key:
        raise ConfigError(f"{key!r} has a brace but no hash tag, so no second key shares its slot; try '{{user:7}}:x'")
    return f"{{{key}}}:fence"


class BaseRedisGuard:
    """What both APIs share: one script for each verb, run by the caller's client."""

    __slots__ = ("_client", "_guard")

    def __init__(self, guard: Guard, client: Any) -> None:
        self._guard = guard
        self._client = client

    async def _set(self, key: str, value: Value, ttl: Duration | None) -> None:
        life = 0.0 if ttl is None else validation.seconds(ttl, "ttl")
        await self._run("set", key, _millis(life), _millis(life + FENCE_LIFE if life else 0.0), value)

    async def _delete(self, key: str) -> None:
        await self._run("delete", key, _millis(FENCE_LIFE))

    async def _run(self, verb: str, key: str, *args: Value) -> None:
        guard = self._guard
        keys = [validation.name(key, "key"), fence_key(key)]
        guard.check()
        script = self._client.register_script(source(verb))
        newer = await settled(script(keys=keys, args=[guard.fence, next(_turns), *args]))
        if newer:
            guard.admit(int(newer))


class RedisGuard(BaseRedisGuard):
    """Blocking, for `redis.Redis`."""

    __slots__ = ()

    def set(self, key: str, value: Value, *, ttl: Duration | None = None) -> None:
        """Set it, or raise StaleFence. `ttl`: seconds until the value goes; its fence stays a day longer."""
        run(self._set(key, value, ttl))

    def delete(self, key: str) -> None:
        """Delete it, or raise StaleFence. Its fence stays a day, so that a late write does not bring it back."""
        run(self._delete(key))


class AsyncRedisGuard(BaseRedisGuard):
    """The same to await, for `redis.asyncio.Redis`."""

    __slots__ = ()

    async def set(self, key: str, value: Value, *, ttl: Duration | None = None) -> None:
        """Set it, or raise StaleFence. `ttl`: seconds until the value goes; its fence stays a day longer."""
        await self._set(key, value, ttl)

    async def delete(self, key: str) -> None:
        """Delete it, or raise StaleFence. Its fence stays a day, so that a late write does not bring it back."""
        await self._delete(key)


def _millis(seconds: float) -> int:
    return -(-validation.micros(seconds) // 1000) if seconds else 0
