"""The arguments of command jobs, which have the internal job type `backstay.command`.

A command job is enqueued to the queue `COMMANDS` with `encode(...)` as its arguments. Its templates are already
rendered, except the `if` of steps and `outputs`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import CorruptRecord
from backstay.job.reserved import COMMAND, COMMANDS

__all__ = ["COMMAND", "COMMANDS", "CommandSpec", "Step", "decode", "encode"]


#: Limit of the encoded arguments of a command job, in bytes.
LARGEST = 4 * 1024 * 1024


class Step(msgspec.Struct, frozen=True, omit_defaults=True, rename="kebab"):
    """One script in one shell. Steps of a job share its directory, its outputs and its background processes."""

    run: str
    name: str = ""
    env: dict[str, str] = {}
    #: The step's `if`. "" means `success()`: the step runs if no earlier step failed. The condition may refer to the
    #: `outputs` of earlier steps.
    condition: str = msgspec.field(name="if", default="")
    #: If the step fails, the failure is logged and the job continues as if the step had succeeded.
    continue_on_error: bool = False
    #: Relative to the job's working directory.
    working_directory: str = ""
    #: "bash", "sh", "python", or a command with {0} in place of the script's file; "": the job's shell.
    shell: str = ""
    #: Seconds that the step may take; 0: no limit.
    timeout: float = 0.0


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """What a command job runs. A job that is defined with `run` instead of `steps` has one step, without a name."""

    steps: tuple[Step, ...]
    env: dict[str, str] = {}
    #: "": the directory in which the worker runs. A relative path starts there.
    working_directory: str = ""
    #: "": bash if it is installed, else sh; both stop at the first failing command.
    shell: str = ""
    #: The job's key in its run, such as "build".
    key: str = ""
    #: The workflow's name.
    workflow: str = ""
    #: The run's inputs.
    inputs: dict[str, Any] = {}
    #: This job's values of the matrix axes.
    matrix: dict[str, Any] = {}
    #: The ids of the chains that this job waited for, by the key of the needed job: {"build": "0-…"}.
    needs: dict[str, str] = {}
    #: Additional outputs: a template for each name. It may refer to outputs that the steps set, as
    #: `${{ outputs.<key> }}`.
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
