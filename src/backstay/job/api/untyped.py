"""Enqueue jobs by the name of their type, which this process need not define.

The options of a definition exist only in the processes that contain it. A process without it enqueues with the options
of the call, and with the defaults for the others; it logs a warning if these may differ from the definition. The worker
has the definition, and uses its `timeout` and `backoff` if the call passes none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from backstay.errors import BadArgument, ConfigError, PayloadTooLarge
from backstay.job.api.codec import PAYLOAD_LIMIT
from backstay.job.api.definition import BaseJobType
from backstay.job.api.options import CallOptions, ResolvedOptions
from backstay.job.api.registry import JOB_TYPES
from backstay.job.model import NewJob
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.runtime.services import Service

log = logging.getLogger("backstay")

#: The options that decide where a job runs and how often. A call that passes both knows what it does.
_DECISIVE = ("queue", "retries")
#: The names of the types for which this process has logged that it does not know their options.
_REPORTED: Service[set[str]] = Service("job types without known options", lambda _: set())


def _placeholder(**arguments: Any) -> Any:
    """Stands for the function of a job type that is defined in another process. It is never called."""


class UntypedJobType(BaseJobType[..., Any]):
    """A job type that is defined in another process: its arguments are stored by name, their types are not checked."""

    def _encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        for name, value in kwargs.items():
            try:
                PLAIN_CODEC.encode(value)
            except Exception as error:
                raise BadArgument(type=self.name, argument=name, reason=str(error)) from error
        raw = PLAIN_CODEC.encode(kwargs) if kwargs else b""
        if len(raw) > PAYLOAD_LIMIT:
            raise PayloadTooLarge(type=self.name, what="arguments", size=len(raw), limit=PAYLOAD_LIMIT)
        return raw

    def _register(self) -> None:
        """Do nothing: only job types that this process can run are registered, and it cannot run this one."""


def build_by_name(core: Core, type_: str, arguments: Mapping[str, Any] | Sequence[Any], options: CallOptions) -> NewJob:
    """Return a new job of the type with this name. Raises BadArgument; ConfigError for positional arguments of a type
    that this process does not define.
    """
    known = core.services.get(JOB_TYPES).get(validation.check_label(type_, "type"))
    job: BaseJobType[..., Any] = UntypedJobType(core, _placeholder, {"name": type_}) if known is None else known
    if known is None:
        _report_unknown_options(core, type_, options)
    job = job.options(**options) if options else job
    if isinstance(arguments, Mapping):
        return job.new_job((), dict(arguments))
    if known is None:
        raise ConfigError(
            f"{type_!r} is not defined here, so pass its arguments by name:"
            f" stay.jobs.enqueue({type_!r}, {{'path': 'a.png'}})"
        )
    if isinstance(arguments, (str, bytes)):
        raise ConfigError("arguments must be a list or a dict, as in stay.jobs.enqueue('resize', ['a.png'])")
    return job.new_job(tuple(arguments), {})


def _report_unknown_options(core: Core, type_: str, options: CallOptions) -> None:
    """Log, once for each type, which options of its definition this process replaces by the defaults."""
    missing = [option for option in _DECISIVE if option not in options]
    reported = core.services.get(_REPORTED)
    if not missing or type_ in reported:
        return
    reported.add(type_)
    defaults = ResolvedOptions()
    log.warning(
        "job type %r is not defined in this process, so the options of its definition (queue, retries, priority,"
        " labels, rate, concurrency, unique, keep) are unknown here: its jobs get %s and no limits. Pass the options"
        " that they need, as in stay.jobs.enqueue(%r, …, %s), or import the module that defines it",
        type_,
        ", ".join(f"{option}={getattr(defaults, option)!r}" for option in missing),
        type_,
        ", ".join(f"{option}=…" for option in missing),
    )
