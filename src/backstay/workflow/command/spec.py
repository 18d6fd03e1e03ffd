"""The arguments of a command job, of the internal job type `backstay.command`.

Such a job is enqueued to the queue `COMMANDS` with `encode(...)` as its arguments. Its texts are already rendered,
except `if` of steps and `outputs`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import CorruptRecord
from backstay.job.reserved import COMMAND, COMMANDS

__all__ = ["COMMAND", "COMMANDS", "CommandSpec", "Step", "decode", "encode"]


class Step(msgspec.Struct, frozen=True, omit_defaults=True, rename="kebab"):
    """One script in one shell. Steps of a job share its directory, its outputs and its background processes."""

    run: str
    name: str = ""
    env: dict[str, str] = {}
    #: "": success(), as for jobs. May refer to `outputs` of the earlier steps.
    condition: str = msgspec.field(name="if", default="")
    #: If the step fails, the failure is logged and the job continues as if the step had succeeded.
    continue_on_error: bool = False
    #: Relative to the job's working directory.
    working_directory: str = ""
    #: "bash", "sh", "python", or a command with {0} in place of the script's file; "": the job's shell.
    shell: str = ""
    #: Seconds; 0: no limit.
    timeout: float = 0.0


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """A command job. A job with `run` alone has one step without a name."""

    steps: tuple[Step, ...]
    env: dict[str, str] = {}
    #: "": the worker's. A relative path is relative to the worker's.
    working_directory: str = ""
    #: "": bash if it is installed, else sh; both stop at the first failing command.
    shell: str = ""
    #: The job's key in its run ("build"), and the definition's name.
    key: str = ""
    workflow: str = ""
    #: The run's inputs, and this job's values of the matrix.
    inputs: dict[str, Any] = {}
    matrix: dict[str, Any] = {}
    #: The chains that it waited for, by key of their job: {"build": "0-…"}.
    needs: dict[str, str] = {}
    #: Templates of additional outputs, which may refer to the commands' own as `${{ outputs.<key> }}`.
    outputs: dict[str, str] = {}


class _Arguments(msgspec.Struct, frozen=True):
    command: CommandSpec


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Arguments).decode


def encode(spec: CommandSpec) -> bytes:
    """Encode a spec as `NewJob.args`."""
    return _encode(_Arguments(spec))


def decode(raw: bytes) -> CommandSpec:
    """Decode a spec from `Claimed.args` or `Job.args`."""
    try:
        return _decode(raw).command
    except DECODE_ERRORS as error:
        raise CorruptRecord(f"the arguments of a command job cannot be decoded: {error}") from error
