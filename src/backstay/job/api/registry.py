"""What a Backstay knows of its jobs: the types it defines, the store it keeps them in, who stands around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from backstay.errors import ConfigError, UnknownJob
from backstay.job.ids import Ids
from backstay.runtime.core import Core

if TYPE_CHECKING:
    from backstay.job.api.definition import BaseJobType
    from backstay.job.api.middleware import Middleware
    from backstay.job.store import Store


def store_of(core: Core) -> Store:
    return cast("Store", core.store)


def ids_of(core: Core) -> Ids:
    """One for each process: a forked child begins anew."""
    ids = core.notes.get("job.ids")
    if ids is None:
        ids = core.notes["job.ids"] = Ids()
    return cast("Ids", ids)


def register(core: Core, job: BaseJobType[Any, Any]) -> None:
    known = core.jobs.get(job.name)
    if known is not None:
        raise ConfigError(
            f"two jobs are called {job.name!r}: {_where(known)} and {_where(job)}; give one of them name="
        )
    core.jobs[job.name] = job


def _where(job: BaseJobType[Any, Any]) -> str:
    return f"{job.function.__module__}.{getattr(job.function, '__qualname__', job.name)}"


def find(core: Core, name: str) -> BaseJobType[Any, Any]:
    """The job type of this name. Raises UnknownJob."""
    job = core.jobs.get(name)
    if job is None:
        raise UnknownJob(type=name, known=tuple(sorted(core.jobs)))
    return cast("BaseJobType[Any, Any]", job)


def middleware_of(core: Core) -> list[Middleware]:
    """The outermost first."""
    return core.middleware
