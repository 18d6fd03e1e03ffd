"""A workflow as data: one model for what YAML says and what Python does. Stored by name, in versions.

The same document stored twice is one version: its digest says so.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal, cast

import msgspec

from backstay.engine.base import UNREADABLE
from backstay.errors import CorruptRecord
from backstay.job.api.retry import Backoff
from backstay.workflow.command.spec import Step

Scalar = str | int | float | bool | None


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a run is told when it starts."""

    description: str = ""
    required: bool = False
    #: None: nothing, which is empty text in commands.
    default: Scalar = None
    #: "": any text, number or boolean.
    type: Literal["", "string", "number", "boolean"] = ""
    options: tuple[Scalar, ...] = ()


class Matrix(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job for each combination: of the axes, without `exclude`, and with `include`."""

    axes: dict[str, tuple[Scalar, ...]] = {}
    include: tuple[dict[str, Scalar], ...] = ()
    exclude: tuple[dict[str, Scalar], ...] = ()


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job of a definition, before its matrix is spread."""

    name: str = ""
    needs: tuple[str, ...] = ()
    #: The text of `if`; "": after success.
    condition: str = ""
    #: At least one.
    steps: tuple[Step, ...] = ()
    env: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    retries: int = 0
    #: None: as the worker says.
    backoff: Backoff | None = None
    #: Seconds an attempt may take; 0: any time.
    timeout: float = 0.0
    priority: int = 0
    #: `continue-on-error`.
    soft: bool = False
    matrix: Matrix | None = None
    #: Outputs by name: text that may speak of `outputs.<key>`, what its commands put out.
    outputs: dict[str, str] = {}
    working_directory: str = ""
    shell: str = ""


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A definition."""

    name: str
    #: What people call it over HTTP, if that is not its name.
    title: str = ""
    source: Literal["yaml", "python"] = "yaml"
    #: What starts it, as written.
    on: tuple[str, ...] = ()
    inputs: dict[str, Input] = {}
    env: dict[str, str] = {}
    #: Seconds a run may take; 0: any time.
    timeout: float = 0.0
    #: In the order in which they were written. Empty for Python: its jobs are those of each call.
    jobs: dict[str, JobSpec] = {}
    #: Where a workflow of Python comes from, and the digest of its code.
    function: str = ""
    code: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Workflow).decode


def pack(workflow: Workflow) -> bytes:
    return _encode(workflow)


def unpack(raw: bytes) -> Workflow:
    try:
        return _decode(raw)
    except UNREADABLE as error:
        raise CorruptRecord(f"a workflow's definition cannot be read: {error}") from error


def digest(raw: bytes) -> str:
    """Of a packed definition: the same document, the same version."""
    return sha256(raw).hexdigest()


def as_json(workflow: Workflow) -> dict[str, Any]:
    """Plain data, with the words of YAML: what `backstay workflows show --json` and the server print. Reading it again
    gives the same workflow.
    """
    plain: dict[str, Any] = {"name": workflow.name}
    if workflow.on:
        plain["on"] = list(workflow.on)
    if workflow.inputs:
        plain["inputs"] = {name: msgspec.to_builtins(one) for name, one in workflow.inputs.items()}
    if workflow.env:
        plain["env"] = dict(workflow.env)
    if workflow.timeout:
        plain["timeout"] = workflow.timeout
    plain["jobs"] = {id_: _job_json(job) for id_, job in workflow.jobs.items()}
    return plain


def _job_json(job: JobSpec) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if job.name:
        plain["name"] = job.name
    if job.needs:
        plain["needs"] = list(job.needs)
    if job.condition:
        plain["if"] = job.condition
    if len(job.steps) == 1 and job.steps[0] == Step(run=job.steps[0].run):
        plain["run"] = job.steps[0].run
    else:
        plain["steps"] = [msgspec.to_builtins(step) for step in job.steps]
    if job.backoff is not None:
        plain["backoff"] = backoff_json(job.backoff)
    if job.soft:
        plain["continue-on-error"] = True
    if job.matrix is not None:
        lists: dict[str, Any] = {axis: list(values) for axis, values in job.matrix.axes.items()}
        for word, entries in (("include", job.matrix.include), ("exclude", job.matrix.exclude)):
            if entries:
                lists[word] = [dict(entry) for entry in entries]
        plain["matrix"] = lists
    if job.working_directory:
        plain["working-directory"] = job.working_directory
    for word in ("env", "labels", "retries", "timeout", "priority", "outputs", "shell"):
        if value := getattr(job, word):
            plain[word] = list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
    return plain


def backoff_json(backoff: Backoff) -> dict[str, Any] | float:
    """As YAML takes it."""
    if backoff.factor == 1.0 and not backoff.jitter:
        return backoff.base
    return {"base": backoff.base, "factor": backoff.factor, "max": backoff.most, "jitter": backoff.jitter}
