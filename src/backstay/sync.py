"""The blocking API: class Backstay for threads, with the names and operations of the async API."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from backstay.app import Backstay as AsyncBackstay
from backstay.assembly.base import BaseBackstay, wrap_blocking_locked
from backstay.assembly.build import build_core
from backstay.assembly.settings import Settings
from backstay.channel.blocking import Channels
from backstay.engine.base import Engine, Ping
from backstay.engine.client_types import ClientObject
from backstay.errors import ConfigError
from backstay.gate.blocking import BlockingGate as BlockingGate  # noqa: PLC0414 - a public re-export
from backstay.gate.blocking import Lease as Lease  # noqa: PLC0414 - as above
from backstay.gate.blocking import Lock as Lock  # noqa: PLC0414 - as above
from backstay.gate.blocking import Locks as Locks  # noqa: PLC0414 - as above
from backstay.gate.blocking import ReadWriteLock as ReadWriteLock  # noqa: PLC0414 - as above
from backstay.gate.blocking import Semaphore as Semaphore  # noqa: PLC0414 - as above
from backstay.hub.base import Hub
from backstay.idempotency.blocking import BlockingIdempotency as Idempotency
from backstay.idempotency.decorator import IdempotentFunction, wrap_blocking
from backstay.idempotency.flows import IdempotencySpec
from backstay.interop.n8n_wire.gate.options import choose_admin
from backstay.job.api.middleware import MIDDLEWARE
from backstay.job.api.mixin import BlockingJobsMixin
from backstay.job.api.registry import JOB_TYPES
from backstay.job.worker.blocking import BlockingWorker
from backstay.limit.blocking import Limit as Limit  # noqa: PLC0414 - as above
from backstay.limit.blocking import Limits as Limits  # noqa: PLC0414 - as above
from backstay.limit.mixin import BlockingLimitsMixin
from backstay.policy import Policy
from backstay.runtime.flows import run
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import KeyTemplate
from backstay.workflow.api.mixin import WORKFLOWS, BlockingWorkflowsMixin

F = TypeVar("F", bound=Callable[..., Any])


class Backstay(
    BaseBackstay[Lock, Semaphore, ReadWriteLock], BlockingLimitsMixin, BlockingJobsMixin, BlockingWorkflowsMixin
):
    """Locks, limits, idempotency keys, jobs, workflows and channels on one engine, for any number of threads.

    url: The engine: `sqlite:///backstay.db` (the default), `memory://`, `redis://…` or `postgresql://…`; or your own
        client or pool (of redis-py or psycopg_pool), which Backstay never closes. Environment: BACKSTAY_URL.
    namespace: Keys and tables are prefixed with it; apps with different namespaces never see each other. Default
        "backstay". Environment: BACKSTAY_NAMESPACE.
    profile, engine, hub, hub_prefix, shards: As in `backstay.Backstay`.
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
        settings = self._settings = Settings(url, namespace, profile, hub, hub_prefix, engine, shards)
        self._core = build_core(settings, blocking=True)
        self._owns_engine = settings.engine is None

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
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function.__qualname__} is async: use the async Backstay's `locked`")
        return wrap_blocking_locked(function, template, lambda name: self.lock(name, **options))

    def _wrap_idempotent(
        self,
        function: F,
        key: str | None,
        fingerprint: Iterable[str] | None,
        options: IdempotencySpec,
        codec: Codec | None,
    ) -> F:
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function.__qualname__} is async: use the async Backstay's `idempotent`")
        return wrap_blocking(IdempotentFunction(self._core, function, key, fingerprint, options, codec), function)

    def open(self) -> Self:
        """Connect to the engine now instead of at first use. `with` does the same."""
        self._core.check_open()
        self._core.engine.correct_clock(self._core.engine.apply(Ping()))
        return self

    def worker(self, **options: Any) -> BlockingWorker:
        """Return a worker that runs jobs: `stay.worker(queues=["default"], concurrency=100).run()` blocks until it has
        stopped. The options are those of the async API. The worker has an event loop and connections of its own; only
        `memory://` and an `engine=` object are shared with it.
        """
        return BlockingWorker(self._async_twin, options)

    def _async_twin(self) -> AsyncBackstay:
        """Return a new async Backstay with the settings, job types, middleware and workflows of this one. A worker
        needs it, because workers always run on the async API.
        """
        settings = self._settings
        shares = self._owns_engine is False or settings.url == "memory://"
        twin = AsyncBackstay(
            settings.url,
            namespace=settings.namespace,
            profile=settings.policy,
            engine=self._core.engine if shares else None,
            hub=settings.hub,
            hub_prefix=settings.hub_prefix,
            shards=settings.shards,
        )
        twin.internals.core.services.share(self._core.services, JOB_TYPES, MIDDLEWARE, WORKFLOWS)
        return twin

    def close(self) -> None:
        """Close connections and stop background threads. Leases still held expire by themselves. Safe to call twice."""
        if not self._core.closed:
            run(self._core.services.flush())
            run(self._core.release_waiters())
            self._core.services.close()
            self._core.close_parts()
        if (runner := self._core.foreign_runner) is not None:
            runner.close_blocking()
        if self._owns_engine:
            self._core.engine.close_blocking()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
