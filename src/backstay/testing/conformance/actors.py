"""The calls that an actor can make to its Backstay. One implementation serves both APIs: `maybe_await` awaits the
results of the async API and returns those of the blocking API as they are.
"""

from __future__ import annotations

import itertools
from typing import Any

from backstay.runtime.flows import maybe_await
from backstay.testing.conformance.actor import Grant
from backstay.testing.conformance.hub.actors import HubActions
from backstay.testing.conformance.idempotency.actors import IdempotencyActions
from backstay.testing.conformance.limit.actors import LimitActions


class Actions(HubActions, LimitActions, IdempotencyActions):
    """Executes an actor's calls by name: `do("acquire", …)` calls `_acquire`. A lease stays in this object; the caller
    gets a number (its handle) for it, because the caller may be in another process.
    """

    def __init__(self, backstay: Any) -> None:
        super().__init__(backstay)
        self._leases: dict[int, Any] = {}
        self._handles = itertools.count(1)

    async def do(self, verb: str, args: dict[str, Any]) -> Any:
        return await getattr(self, f"_{verb}")(**args)

    def _gate(self, name: Any, kind: str, options: dict[str, Any]) -> Any:
        match kind:
            case "lock":
                return self._backstay.lock(name, **options)
            case "semaphore":
                return self._backstay.semaphore(name, **options)
            case "read":
                return self._backstay.rwlock(name, **options).read()
            case _:
                return self._backstay.rwlock(name, **options).write()

    def _grant(self, handle: int) -> Grant:
        lease = self._leases[handle]
        return Grant(handle, lease.name, lease.lock_id, lease.fence, lease.expires_at.isoformat(), lease.as_dict())

    def _keep(self, lease: Any) -> Grant:
        handle = next(self._handles)
        self._leases[handle] = lease
        return self._grant(handle)

    async def _acquire(self, name: Any, kind: str, options: dict[str, Any], call: dict[str, Any]) -> Grant:
        return self._keep(await maybe_await(self._gate(name, kind, options).acquire(**call)))

    async def _try_acquire(self, name: Any, kind: str, options: dict[str, Any], call: dict[str, Any]) -> Grant | None:
        lease = await maybe_await(self._gate(name, kind, options).try_acquire(**call))
        return None if lease is None else self._keep(lease)

    async def _release(self, handle: int) -> Any:
        return await maybe_await(self._leases[handle].release())

    async def _renew(self, handle: int, ttl: Any) -> Grant:
        await maybe_await(self._leases[handle].renew(ttl))
        return self._grant(handle)

    async def _check(self, handle: int) -> None:
        self._leases[handle].check()

    async def _is_lost(self, handle: int) -> bool:
        return bool(self._leases[handle].is_lost)

    async def _inspect(self, name: Any) -> Any:
        return await maybe_await(self._backstay.locks.inspect(name))

    async def _list(self, prefix: Any) -> Any:
        return await maybe_await(self._backstay.locks.list(prefix))

    async def _release_by_id(self, name: Any, lock_id: Any) -> Any:
        return await maybe_await(self._backstay.locks.release(name, lock_id))

    async def _force_release(self, name: Any) -> Any:
        return await maybe_await(self._backstay.locks.force_release(name))

    async def _cleanup(self, execution_id: Any, scopes: Any) -> Any:
        return await maybe_await(self._backstay.locks.cleanup(execution_id, scopes))
