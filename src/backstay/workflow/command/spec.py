"""What a command job is to do, as data: the arguments of the internal job type `backstay.command`.

Whoever makes such a job puts it into the queue `COMMANDS`, with `encode(...)` as its arguments. Texts are final: what
depends on inputs or a matrix has been filled in; what depends on other jobs arrives as environment.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.engine.base import UNREADABLE
from backstay.errors import CorruptRecord
from backstay.job.reserved import COMMAND, COMMANDS

__all__ = ["COMMAND", "COMMANDS", "CommandSpec", "Step", "decode", "encode"]


class Step(msgspec.Struct, frozen=True, omit_defaults=True, rename="kebab"):
    """One script, in one shell. Steps of a job share its directory, its outputs and its background processes."""

    run: str
    name: str = ""
    env: dict[str, str] = {}
    #: "": success(), as for jobs. Sees `outputs` of the steps before.
    condition: str = msgspec.field(name="if", default="")
    #: Its failure is noted, and the job goes on as if it had not failed.
    continue_on_error: bool = False
    #: Relative to the job's.
    working_directory: str = ""
    #: "bash", "sh", "python", or a command with {0} where the script's file goes; "": as the job says.
    shell: str = ""
    #: Seconds; 0: any time.
    timeout: float = 0.0


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """A command job. A job with `run` alone has one step without a name."""

    steps: tuple[Step, ...]
    env: dict[str, str] = {}
    #: "": the worker's. A relative one begins there.
    working_directory: str = ""
    #: "": bash where there is one, else sh; both stop at the first command that fails.
    shell: str = ""
    #: The job's key in its run ("build"), and the definition's name.
    key: str = ""
    workflow: str = ""
    #: The run's inputs, and what its matrix says of this job.
    inputs: dict[str, Any] = {}
    matrix: dict[str, Any] = {}
    #: Which chains it waited for, by the key of their job: {"build": "0-…"}.
    needs: dict[str, str] = {}
    #: Outputs that are made of what its commands put out: text with `${{ outputs.<key> }}` in it.
    outputs: dict[str, str] = {}


class _Arguments(msgspec.Struct, frozen=True):
    command: CommandSpec


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Arguments).decode


def encode(spec: CommandSpec) -> bytes:
    """As `NewJob.args`."""
    return _encode(_Arguments(spec))


def decode(raw: bytes) -> CommandSpec:
    """From `Claimed.args` or `Job.args`."""
    try:
        return _decode(raw).command
    except UNREADABLE as error:
        raise CorruptRecord(f"what a command job is to do cannot be read: {error}") from error
