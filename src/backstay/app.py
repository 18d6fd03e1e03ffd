"""The async API: class Backstay. `backstay.sync` has the same class for threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from backstay.assembly.base import BaseBackstay, wrap_blocking_locked
from backstay.assembly.build import build_core
from backstay.assembly.settings import Settings
from backstay.channel.api import Channels
from backstay.engine.base import Engine
from backstay.engine.client_types import ClientObject
from backstay.gate.api import Lock, Locks, ReadWriteLock, Semaphore
from backstay.hub.base import Hub
from backstay.idempotency.api import Idempotency
from backstay.idempotency.decorator import IdempotentFunction, wrap_async, wrap_blocking
from backstay.idempotency.flows import IdempotencySpec
from backstay.interop.n8n_wire.gate.options import choose_admin
from backstay.job.api.mixin import JobsMixin
from backstay.limit.mixin import LimitsMixin
from backstay.policy import Policy
from backstay.runtime.port import AsyncPort
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import KeyTemplate
from backstay.workflow.api.mixin import WorkflowsMixin
from backstay.workflow.api.worker_mixin import WorkerMixin

if TYPE_CHECKING:
    from backstay.sync import Backstay as BlockingBackstay

F = TypeVar("F", bound=Callable[..., Any])


class Backstay(BaseBackstay[Lock, Semaphore, ReadWriteLock], LimitsMixin, JobsMixin, WorkerMixin, WorkflowsMixin):
    """Locks, limits, idempotency keys, jobs, workflows and channels on one engine. It belongs to the first event loop
    that uses it.

    url: The engine: `sqlite:///backstay.db` (the default), `memory://`, `redis://…` or `postgresql://…`; or your own
        client or pool (of redis-py or psycopg_pool), which Backstay never closes. Environment: BACKSTAY_URL.
    namespace: Keys and tables are prefixed with it; apps with different namespaces never see each other. Default
        "backstay". Environment: BACKSTAY_NAMESPACE.
    profile: The policy with the defaults of all options: BALANCED (the default), MAX_SAFETY, MAX_AVAILABILITY or your
        own Policy.
    engine: An engine object, client or pool instead of a URL.
    hub: A service other than the engine to send notifications over: `redis://…`, a client or pool, or a Hub. Only for
        SQLite and PostgreSQL engines. Environment: BACKSTAY_HUB.
    hub_prefix: The prefix of the hub's channels. Default: the namespace.
    shards: The number of shards that jobs are spread over on Redis, so that the nodes of a Cluster share the load.
        Default 1. All processes must use the same number. Environment: BACKSTAY_SHARDS.
    """

    _lock_type = Lock
    _semaphore_type = Semaphore
    _rwlock_type = ReadWriteLock

    def __init__(
        self,
        url: str | ClientObject | None = None,
        *,
        namespace: str | None = None,
        profile: Policy | None = None,
        engine: Engine | ClientObject | None = None,
        hub: str | Hub | ClientObject | None = None,
        hub_prefix: str | None = None,
        shards: int | None = None,
    ) -> None:
        self._settings = Settings(url, namespace, profile, hub, hub_prefix, engine, shards)
        self._core = build_core(self._settings, blocking=False)
        self._owns_engine = self._settings.engine is None
        self._twin: BlockingBackstay | None = None

    @property
    def locks(self) -> Locks:
        """Inspect, list, force-release and clean up locks."""
        return Locks(self._core, choose_admin)

    @property
    def idempotency(self) -> Idempotency:
        """Run a function once per key; inspect and forget keys."""
        return Idempotency(self._core)

    @property
    def hub(self) -> Channels:
        """Publish messages and listen for them."""
        return Channels(self._core)

    def _wrap_locked(self, function: F, template: KeyTemplate, options: dict[str, Any]) -> F:
        if not inspect.iscoroutinefunction(function):
            return wrap_blocking_locked(function, template, lambda name: self._blocking().lock(name, **options))

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            name = template.key(args, kwargs)
            async with self.lock(name, **options):
                return await function(*args, **kwargs)

        return cast("F", wrapper)

    def _wrap_idempotent(
        self,
        function: F,
        key: str | None,
        fingerprint: Iterable[str] | None,
        options: IdempotencySpec,
        codec: Codec | None,
    ) -> F:
        if inspect.iscoroutinefunction(function):
            return wrap_async(IdempotentFunction(self._core, function, key, fingerprint, options, codec), function)
        core = self._blocking().internals.core
        return wrap_blocking(IdempotentFunction(core, function, key, fingerprint, options, codec), function)

    def _connection_urls(self) -> tuple[str, ...]:
        return tuple(one for one in (self._settings.url, self._settings.hub) if isinstance(one, str))

    def _blocking(self) -> BlockingBackstay:
        """Return the blocking API over the same engine, for decorated functions that are not async."""
        if self._twin is None:
            from backstay import sync

            settings = self._settings
            self._twin = sync.Backstay(
                settings.url,
                namespace=settings.namespace,
                profile=settings.policy,
                engine=self._core.engine,
                hub=settings.hub,
                hub_prefix=settings.hub_prefix,
                shards=settings.shards,
            )
        return self._twin

    async def open(self) -> Self:
        """Connect to the engine now instead of at first use. `async with` does the same."""
        self._core.check_open()
        cast("AsyncPort", self._core.port).loop()
        await self._core.engine.open()
        return self

    async def close(self) -> None:
        """Close connections and stop background threads. Leases still held expire by themselves. Safe to call twice."""
        if self._twin is not None:
            await asyncio.to_thread(self._twin.close)
        if not self._core.closed:
            await self._core.services.flush()
            await self._core.release_waiters()
            self._core.services.close()
            if self._core.owns_hub:
                await self._core.hub.join()
            await asyncio.to_thread(self._core.close_parts)
        if (runner := self._core.foreign_runner) is not None:
            await runner.close()
        if self._owns_engine:
            await self._core.engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
