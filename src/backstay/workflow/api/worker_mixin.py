"""`stay.worker(...)`: create a worker of an async Backstay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from backstay.errors import ConfigError
from backstay.job.scheduler.pruner import KEEP
from backstay.job.worker.slots import Queues
from backstay.job.worker.worker import CONCURRENCY, Worker
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration, to_seconds


class WorkerMixin:
    """Worker methods of the async `Backstay`."""

    _core: Core

    def _connection_urls(self) -> tuple[str, ...]:
        """Return the URLs of the engine and the hub, if they were given as URLs. They may contain passwords."""
        raise NotImplementedError

    def worker(
        self,
        *,
        queues: Queues = ("default",),
        labels: Iterable[str] = (),
        concurrency: int = CONCURRENCY,
        lease: Duration = 30,
        drain: Duration = 30,
        grace: Duration = 5,
        blocked_after: Duration = 1,
        prefetch: bool = True,
        signals: bool = True,
        name: str = "",
        keep: int = KEEP,
        allow_commands: bool = False,
        pass_env: Iterable[str] = (),
        secrets: Iterable[str] | Mapping[str, str] = (),
        directory: str | Path = ".",
        artifacts: str | Path = "",
    ) -> Worker:
        """Create a worker: `await stay.worker(queues=["default"], concurrency=100).run()`.

        queues: The names of the queues: the worker claims the jobs of all of them in the order of priority and age. Or
            a mapping with the weight of each queue, {"mail": 3, "default": 1}.
        labels: The labels of this worker. It claims a job only if it has all labels of the job.
        concurrency: The largest number of jobs that run at the same time.
        lease: Seconds after which other workers get the jobs of this worker if it dies. The worker renews its leases
            while it lives.
        drain: Seconds that a stop waits for running jobs.
        grace: Seconds that a handler has to end after it is asked to stop.
        blocked_after: Warn when the event loop is blocked for this many seconds. 0: never.
        prefetch: Claim jobs before a slot is free. This is done only on PostgreSQL, and only while jobs end within
            milliseconds. Prefetched jobs that have not started within 50 ms are released for other workers.
        signals: SIGTERM and Ctrl-C stop the worker, unless the program handles them itself.
        name: The worker's name, unique among workers. Generated if empty.
        keep: The largest number of completed jobs that stay stored, whatever their own `keep=` is. Among several
            workers, the smallest limit applies.

        allow_commands: Also run the commands of workflows, as the worker's user.
        pass_env: Variables of the worker's environment that commands get in addition to a few harmless ones. A name may
            be a pattern with `*`.
        secrets: Variables that commands get and whose values are masked in logs: names, or a mapping with values.
        directory: The directory in which commands run.
        artifacts: A directory for the files that commands produce, shared by all workers that need them. Without it,
            the engine stores the files.
        """
        from backstay.workflow.planning import internal_jobs  # imported here: programs without a worker skip the cost

        internal_jobs.install(self._core)
        if allow_commands:
            from backstay.workflow.command.environment import build_command_environment
            from backstay.workflow.command.job_type import install

            ending = to_seconds(grace, "grace", zero=True)
            install(
                self._core,
                build_command_environment(pass_env, secrets, directory, ending, artifacts, self._connection_urls()),
            )
        elif tuple(pass_env) or tuple(secrets):
            raise ConfigError("pass_env= and secrets= apply to commands only: pass allow_commands=True as well")
        return Worker(
            self._core,
            queues=queues,
            labels=labels,
            concurrency=concurrency,
            lease=lease,
            drain=drain,
            grace=grace,
            blocked_after=blocked_after,
            prefetch=prefetch,
            signals=signals,
            name=name,
            allow_commands=allow_commands,
            keep=keep,
        )
