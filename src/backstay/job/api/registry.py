"""The registry of a Backstay's job types, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.errors import ConfigError, UnknownJob
from backstay.runtime.core import Core
from backstay.runtime.services import Service

if TYPE_CHECKING:
    from backstay.job.api.definition import BaseJobType

#: The job types defined by the program.
JOB_TYPES: Service[dict[str, BaseJobType[..., Any]]] = Service("job registry", lambda _: {}, survives_fork=True)
#: Backstay's internal job types, which every worker runs: they drive workflow runs.
INTERNAL_JOB_TYPES: Service[dict[str, BaseJobType[..., Any]]] = Service(
    "registry of internal jobs", lambda _: {}, survives_fork=True
)


def register(core: Core, job: BaseJobType[..., Any]) -> None:
    """Add a job type to the registry. Raises ConfigError if another one has the same name."""
    known = core.services.get(JOB_TYPES).setdefault(job.name, job)
    if known is not job:
        raise ConfigError(
            f"two jobs are named {job.name!r}: {_where(known)} and {_where(job)}; give one of them another name="
        )


def _where(job: BaseJobType[..., Any]) -> str:
    return f"{job.function.__module__}.{getattr(job.function, '__qualname__', job.name)}"


def find(core: Core, name: str) -> BaseJobType[..., Any]:
    """Return the job type with this name. Raises UnknownJob."""
    known = core.services.get(JOB_TYPES)
    job = known.get(name)
    if job is None:
        raise UnknownJob(type=name, known=tuple(sorted(known)))
    return job
