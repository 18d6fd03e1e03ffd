"""Enqueue by name: jobs of a type that this process may not define."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backstay.errors import BadArgument, ConfigError, PayloadTooLarge
from backstay.job.api.codec import PAYLOAD_LIMIT
from backstay.job.api.definition import BaseJobType
from backstay.job.api.options import CallOptions
from backstay.job.api.registry import JOB_TYPES
from backstay.job.model import NewJob
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.serialization import PLAIN_CODEC


def _anything(**arguments: Any) -> Any:
    """Stands in for the function of a job type defined in another process."""


class UntypedJobType(BaseJobType[..., Any]):
    """A job type defined in another process: its arguments are sent by name, unchecked."""

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
        """Do nothing: this process does not run the type."""


def build_by_name(core: Core, type_: str, arguments: Mapping[str, Any] | Sequence[Any], options: CallOptions) -> NewJob:
    """Return a new job of the type with this name."""
    known = core.services.get(JOB_TYPES).get(validation.check_label(type_, "type"))
    job: BaseJobType[..., Any] = UntypedJobType(core, _anything, {"name": type_}) if known is None else known
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
