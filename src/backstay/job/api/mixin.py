"""The job API of the async and the blocking Backstay: `job`, `jobs`, `queues`, `scheduler`, `transaction`, `use`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from backstay.errors import ConfigError
from backstay.job.api.blocking import BlockingJobs, BlockingQueues
from backstay.job.api.definition import BlockingJobDecorator, BlockingJobType, JobDecorator, JobType
from backstay.job.api.jobs import Jobs
from backstay.job.api.middleware import MIDDLEWARE, Middleware
from backstay.job.api.options import DefinitionOptions
from backstay.job.api.queues import Queues
from backstay.job.api.transaction import BlockingTransactionBlock, TransactionBlock
from backstay.job.scheduler.pruner import KEEP
from backstay.job.scheduler.scheduler import BlockingScheduler, Scheduler
from backstay.runtime import validation
from backstay.runtime.core import Core

P = ParamSpec("P")
R = TypeVar("R")


class BaseJobsMixin:
    """The part of the job API that the async and the blocking Backstay share."""

    _core: Core

    def use(self, middleware: Middleware) -> None:
        """Add middleware around every job that this Backstay enqueues or runs. The first one added is outermost."""
        if not isinstance(middleware, Middleware):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise ConfigError("stay.use takes a Middleware: class Mine(backstay.Middleware): …; stay.use(Mine())")
        self._core.services.get(MIDDLEWARE).append(middleware)


class JobsMixin(BaseJobsMixin):
    """The job API of an async Backstay."""

    @property
    def jobs(self) -> Jobs:
        """Inspect, retry, cancel and purge jobs; enqueue a job by the name of its type."""
        return Jobs(self._core)

    @property
    def queues(self) -> Queues:
        """Inspect, pause, resume, rate-limit and drain queues."""
        return Queues(self._core)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobType[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobType[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[DefinitionOptions]) -> JobDecorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[DefinitionOptions]) -> Any:
        """Define a job: `@stay.job(queue="default", retries=5, timeout=60)`. A function that is not async runs in a
        thread of the worker.

        name: the name of the job type (default: the function's name).
        queue, labels: which workers run the job.
        retries: the number of attempts after the first (default 3).
        backoff: the seconds between attempts.
        timeout: the time limit of each attempt, in seconds.
        priority: a job with a higher priority starts sooner.
        concurrency_key, concurrency: how many jobs with the same key run at once.
        rate, burst: how many jobs start in a period.
        unique, unique_scope, unique_window: at most one job per unique key, and for how long.
        cron, timezone, catch_up: when the job is enqueued automatically.
        keep, keep_failed: for how many seconds the record of an ended job is stored.
        pool: whether a function that is not async runs in a "thread" or in a child "process".
        payload_limit, result_limit: the largest size of the arguments and of the result, in bytes.
        """

        def decorate(function: Callable[..., Any]) -> JobType[..., Any]:
            return JobType[..., Any](self._core, function, options)

        return decorate if function is None else decorate(function)

    def scheduler(self, *, keep: int = KEEP) -> Scheduler:
        """Return a scheduler, which runs cron and pruning without a worker (workers also do both). keep: how many
        completed jobs each shard stores at most.
        """
        return Scheduler(self._core, validation.check_count(keep, "keep"))

    def transaction(self, connection: Any) -> TransactionBlock:
        """Open a transaction on your own SQL connection for the duration of a block. Jobs enqueued in the block with
        `resize.options(connection=conn).enqueue(…)` are part of the transaction. They are announced to workers after
        the commit.

        connection: a connection of sqlite3, psycopg, SQLAlchemy or Django to the database that stores the jobs.

        On SQLite, every other call of this Backstay inside the block raises WouldDeadlock: it would wait for your
        commit.
        """
        return TransactionBlock(self._core, connection)


class BlockingJobsMixin(BaseJobsMixin):
    """The job API of a blocking Backstay."""

    @property
    def jobs(self) -> BlockingJobs:
        """Inspect, retry, cancel and purge jobs; enqueue a job by the name of its type."""
        return BlockingJobs(self._core)

    @property
    def queues(self) -> BlockingQueues:
        """Inspect, pause, resume, rate-limit and drain queues."""
        return BlockingQueues(self._core)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingJobType[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> BlockingJobType[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[DefinitionOptions]) -> BlockingJobDecorator: ...
    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[DefinitionOptions]) -> Any:
        """Define a job: `@stay.job(queue="default", retries=5, timeout=60)`. The options are those of the async API;
        async functions run on the worker's event loop.
        """

        def decorate(function: Callable[..., Any]) -> BlockingJobType[..., Any]:
            return BlockingJobType[..., Any](self._core, function, options)

        return decorate if function is None else decorate(function)

    def scheduler(self, *, keep: int = KEEP) -> BlockingScheduler:
        """Return a scheduler, which runs cron and pruning without a worker (workers also do both). keep: how many
        completed jobs each shard stores at most.
        """
        return BlockingScheduler(self._core, validation.check_count(keep, "keep"))

    def transaction(self, connection: Any) -> BlockingTransactionBlock:
        """Open a transaction on your own SQL connection for the duration of a block. Jobs enqueued in the block with
        `resize.options(connection=conn).enqueue(…)` are part of the transaction. They are announced to workers after
        the commit.

        connection: a connection of sqlite3, psycopg, SQLAlchemy or Django to the database that stores the jobs.

        On SQLite, every other call of this Backstay inside the block raises WouldDeadlock: it would wait for your
        commit.
        """
        return BlockingTransactionBlock(self._core, connection)
