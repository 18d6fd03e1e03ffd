"""The definition of a workflow as data: the same model for YAML and Python, stored by name and version.

Storing a definition whose digest equals that of the newest version creates no new version.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal, cast

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import CorruptRecord
from backstay.job.api.retry import Backoff
from backstay.workflow.command.spec import Step

#: Limit of a stored definition, in bytes.
LARGEST = 4 * 1024 * 1024

Scalar = str | int | float | bool | None


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared input of a workflow."""

    description: str = ""
    required: bool = False
    #: The value if a run is started without this input. None stands for null, which commands see as empty text.
    default: Scalar = None
    #: "": any text, number or boolean.
    type: Literal["", "string", "number", "boolean"] = ""
    options: tuple[Scalar, ...] = ()


class Matrix(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Makes one job for each combination of values of the axes, without those that `exclude` lists, and adds those that
    `include` lists.
    """

    axes: dict[str, tuple[Scalar, ...]] = {}
    include: tuple[dict[str, Scalar], ...] = ()
    exclude: tuple[dict[str, Scalar], ...] = ()


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A connection point of a job in an editor of workflows. Backstay only stores and returns it."""

    id: str
    label: str
    direction: Literal["input", "output"]
    #: Only ports of the same type may be connected.
    port_type: str = ""
    color: str | None = None


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job of a definition, before its matrix is expanded."""

    name: str = ""
    needs: tuple[str, ...] = ()
    #: The text of `if`; "" means the condition `success()`.
    condition: str = ""
    #: The scripts that the job runs, in order; at least one.
    steps: tuple[Step, ...] = ()
    env: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    retries: int = 0
    #: None: the default backoff.
    backoff: Backoff | None = None
    #: Seconds an attempt may take; 0: no limit.
    timeout: float = 0.0
    priority: int = 0
    #: `continue-on-error`: the job's failure neither skips dependents nor fails the run.
    soft: bool = False
    matrix: Matrix | None = None
    #: Additional outputs: a template for each name. It may refer to outputs that the job's steps set, as
    #: `${{ outputs.<key> }}`.
    outputs: dict[str, str] = {}
    working_directory: str = ""
    shell: str = ""
    #: Data of a client (an editor of workflows), stored and returned unchanged.
    metadata: dict[str, Any] = {}
    ports: tuple[Port, ...] = ()


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The definition of a workflow."""

    name: str
    #: Display name in the HTTP API, if it differs from `name`.
    title: str = ""
    source: Literal["yaml", "python"] = "yaml"
    #: The value of `on`. It is stored for programs that start runs; Backstay itself ignores it.
    on: tuple[str, ...] = ()
    inputs: dict[str, Input] = {}
    env: dict[str, str] = {}
    #: Seconds a run may take; 0: no limit.
    timeout: float = 0.0
    #: The jobs by id, in document order. Empty for Python workflows, whose function builds the jobs of each run.
    jobs: dict[str, JobSpec] = {}
    #: Qualified name of a Python workflow's function, and the digest of its code.
    function: str = ""
    code: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Workflow).decode


def pack(workflow: Workflow) -> bytes:
    return _encode(workflow)


def unpack(raw: bytes) -> Workflow:
    try:
        return _decode(raw)
    except DECODE_ERRORS as error:
        raise CorruptRecord(f"the definition of a workflow cannot be decoded: {error}") from error


def digest(raw: bytes) -> str:
    """Return the digest of a packed definition. Equal digests mean the same version."""
    return sha256(raw).hexdigest()


def as_json(workflow: Workflow) -> dict[str, Any]:
    """Convert a definition to plain data with the keys of the YAML format, for `backstay workflows show --json` and the
    server. Reading the result gives an equal definition.
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
    if job.metadata:
        plain["metadata"] = job.metadata
    if job.ports:
        plain["ports"] = [msgspec.to_builtins(port) for port in job.ports]
    return plain


def backoff_json(backoff: Backoff) -> dict[str, Any] | float:
    """Convert a backoff to the value of the YAML key `backoff`."""
    if backoff.factor == 1.0 and not backoff.jitter:
        return backoff.base
    return {"base": backoff.base, "factor": backoff.factor, "max": backoff.most, "jitter": backoff.jitter}
