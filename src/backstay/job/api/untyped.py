"""Jobs by name: of a type that this process perhaps does not define."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backstay.errors import BadArgument, ConfigError, PayloadTooLarge
from backstay.job.api.codec import PAYLOAD_LIMIT
from backstay.job.api.definition import BaseJobType
from backstay.job.api.options import CallOptions
from backstay.job.model import NewJob
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.serialization import ANYTHING


def _anything(**arguments: Any) -> Any:
    """The signature of a job that is defined elsewhere."""


class Stranger(BaseJobType[..., Any]):
    """A job type that is defined elsewhere: its arguments travel by name, unchecked."""

    def _encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        for name, value in kwargs.items():
            try:
                ANYTHING.encode(value)
            except Exception as error:
                raise BadArgument(type=self.name, argument=name, reason=str(error)) from error
        raw = ANYTHING.encode(kwargs) if kwargs else b""
        if len(raw) > PAYLOAD_LIMIT:
            raise PayloadTooLarge(type=self.name, what="arguments", size=len(raw), limit=PAYLOAD_LIMIT)
        return raw

    def _register(self) -> None:
        """Nobody runs it here."""


def by_name(core: Core, type_: str, arguments: Mapping[str, Any] | Sequence[Any], options: CallOptions) -> NewJob:
    """A call of the job type of this name, as it is stored."""
    known = core.jobs.get(validation.word(type_, "type"))
    job: BaseJobType[..., Any] = Stranger(core, _anything, {"name": type_}) if known is None else known
    job = job.options(**options) if options else job
    if isinstance(arguments, Mapping):
        return job.new_job((), dict(arguments))
    if known is None:
        raise ConfigError(
            f"{type_!r} is not defined here, so its arguments go by name:"
            f" stay.jobs.enqueue({type_!r}, {{'path': 'a.png'}})"
        )
    if isinstance(arguments, (str, bytes)):
        raise ConfigError("arguments are a list, or a dict by name, as in stay.jobs.enqueue('resize', ['a.png'])")
    return job.new_job(tuple(arguments), {})
