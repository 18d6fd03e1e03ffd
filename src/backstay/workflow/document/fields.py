"""The keys that a workflow document may have. The code that reads documents, the JSON Schema and the reference page all
use these tables.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.job.api.options import MOST_LABELS, MOST_RETRIES
from backstay.job.model import LARGEST_PRIORITY

#: The pattern of a name: of a job, an input, an axis of a matrix or an output.
NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
#: The largest number of ports of a job.
MOST_PORTS = 100
#: A number of seconds, or a number with a unit.
DURATION = r"\d+(\.\d+)?\s*(ms|s|m|h|d)?"


class Field(Struct, frozen=True):
    """A key of a document: the JSON Schema of its value, and its description."""

    name: str
    kind: str
    schema: dict[str, Any]
    doc: str
    example: str = ""
    required: bool = False


_TEXT = {"type": "string"}
_SCALAR: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
_BOOLEAN = {"type": "boolean"}
_TABLE_OF_SCALARS = {"type": "object", "additionalProperties": _SCALAR}
_NAME = {"type": "string", "pattern": f"^{NAME}$"}
_DURATION = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": f"^{DURATION}$"}]}
_DELAY = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{DURATION}$"}]}
_CONDITION = {"type": ["string", "boolean"]}


def _one_or_many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


WORKFLOW: tuple[Field, ...] = (
    Field(
        "name",
        "text",
        {**_TEXT, "minLength": 1, "maxLength": 200},
        "The workflow's name. Default: the file's name, if the document comes from a file.",
        "ci",
    ),
    Field(
        "on",
        "any",
        {},
        "The trigger: a word, a list, or a mapping. It is stored for programs that start runs; Backstay starts nothing"
        " by itself. The key `on` is text here, not a boolean.",
        "push",
    ),
    Field(
        "inputs",
        "inputs",
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{NAME}$"},
            "additionalProperties": {"$ref": "#/$defs/input"},
        },
        "The inputs of a run, by name. A plain value is a default.",
        "{version: {required: true}}",
    ),
    Field(
        "env", "env", _TABLE_OF_SCALARS, "Environment variables of all commands. May refer to `inputs`.", "{CI: true}"
    ),
    Field(
        "timeout",
        "duration",
        _DURATION,
        "How long a run may take; then it is cancelled. Seconds, or a number with ms, s, m, h, d.",
        "2h",
    ),
    Field(
        "jobs",
        "jobs",
        {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{NAME}$"},
            "additionalProperties": {"$ref": "#/$defs/job"},
        },
        "The jobs, by id.",
        "{build: {run: make}}",
        required=True,
    ),
)

JOB: tuple[Field, ...] = (
    Field(
        "name",
        "text",
        {**_TEXT, "minLength": 1, "maxLength": 500},
        "Display name; default: the job's id. May refer to `inputs` and `matrix`.",
        "Unit tests",
    ),
    Field(
        "needs",
        "names",
        _one_or_many(_NAME),
        "Jobs that must end before this job starts: an id, or a list of ids.",
        "[build, lint]",
    ),
    Field(
        "run",
        "command",
        {**_TEXT, "minLength": 1},
        "One command, in a shell that stops at the first failure. This or `steps`.",
        "make test",
    ),
    Field(
        "steps",
        "steps",
        {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}},
        "Several commands, run one after another in one environment. This or `run`.",
        "[{run: make}, {run: make test}]",
    ),
    Field(
        "env",
        "env",
        _TABLE_OF_SCALARS,
        "Environment variables of its commands, added to the workflow's. May refer to `needs`, `inputs`, `matrix` and"
        " `env`.",
        "{LEVEL: debug}",
    ),
    Field(
        "labels",
        "labels",
        _one_or_many(_TEXT),
        f"Labels that its worker must have, all of them; at most {MOST_LABELS}. May refer to `inputs` and `matrix`.",
        "[linux, gpu]",
    ),
    Field(
        "retries",
        "retries",
        {"type": "integer", "minimum": 0, "maximum": MOST_RETRIES},
        "Attempts after the first one (default 0).",
        "2",
    ),
    Field(
        "backoff",
        "backoff",
        {"anyOf": [_DELAY, {"$ref": "#/$defs/backoff"}]},
        "The wait between attempts: seconds (0: none), or a mapping for a growing wait.",
        "{base: 1, max: 60}",
    ),
    Field(
        "timeout",
        "duration",
        _DURATION,
        "How long an attempt may take; then it is stopped and fails. Seconds, or a number with ms, s, m, h, d.",
        "10m",
    ),
    Field(
        "if",
        "condition",
        _CONDITION,
        "Condition; the job is skipped if it does not hold. Without a status function, success() must hold as well.",
        "needs.build.outputs.changed == 'yes'",
    ),
    Field(
        "priority",
        "priority",
        {"type": "integer", "minimum": -LARGEST_PRIORITY, "maximum": LARGEST_PRIORITY},
        "Jobs with a higher priority start first (default 0); one point equals ten minutes of waiting.",
        "5",
    ),
    Field(
        "continue-on-error",
        "boolean",
        _BOOLEAN,
        "A failure of the job neither skips the jobs that need it nor fails the run.",
        "true",
    ),
    Field(
        "matrix",
        "matrix",
        {
            "type": "object",
            "minProperties": 1,
            "properties": {word: {"type": "array", "items": _TABLE_OF_SCALARS} for word in ("include", "exclude")},
            "additionalProperties": {"type": "array", "minItems": 1, "items": _SCALAR},
        },
        "Makes one job per combination of its lists; `exclude` removes combinations, `include` adds some.",
        "{python: ['3.11', '3.12']}",
    ),
    Field(
        "outputs",
        "outputs",
        {"type": "object", "propertyNames": {"pattern": f"^{NAME}$"}, "additionalProperties": _SCALAR},
        "Additional outputs, computed from outputs of the commands. May also refer to `outputs`.",
        "{image: 'app:${{ outputs.tag }}'}",
    ),
    Field(
        "working-directory",
        "text",
        _TEXT,
        "The directory in which the commands run; a relative path is relative to the worker's directory.",
        "web",
    ),
    Field(
        "shell", "text", _TEXT, "`bash`, `sh`, `python`, or a command with `{0}` in place of the script's file.", "bash"
    ),
    Field(
        "metadata",
        "any",
        {"type": "object"},
        "Data of an editor or another client. It is stored and returned unchanged, and not interpreted.",
        "{color: green}",
    ),
    Field(
        "ports",
        "ports",
        {"type": "array", "maxItems": MOST_PORTS, "items": {"$ref": "#/$defs/port"}},
        f"Connection points of the job in an editor; at most {MOST_PORTS}. Stored and returned like `metadata`.",
        "[{id: in, label: In, direction: input}]",
    ),
)

STEP: tuple[Field, ...] = (
    Field("name", "text", {**_TEXT, "maxLength": 500}, "Display name.", "Compile"),
    Field("run", "command", {**_TEXT, "minLength": 1}, "The command.", "make", required=True),
    Field("env", "env", _TABLE_OF_SCALARS, "Environment variables of this step, added to the job's.", "{V: 1}"),
    Field(
        "if",
        "condition",
        _CONDITION,
        "Condition; the step is skipped if it does not hold. `outputs.<key>` are the outputs of the earlier steps.",
        "outputs.changed == 'yes'",
    ),
    Field("continue-on-error", "boolean", _BOOLEAN, "A failure of the step is logged, and the job continues.", "true"),
    Field(
        "working-directory",
        "text",
        _TEXT,
        "The directory in which the step runs; a relative path is relative to the job's directory.",
        "docs",
    ),
    Field("shell", "text", _TEXT, "The shell of this step; default: the job's.", "python"),
    Field(
        "timeout", "duration", _DURATION, "How long the step may take. Seconds, or a number with ms, s, m, h, d.", "30s"
    ),
)

INPUT: tuple[Field, ...] = (
    Field("description", "text", _TEXT, "Description for users.", "The version to be released"),
    Field("required", "boolean", _BOOLEAN, "A run cannot start without this input, unless it has a default.", "true"),
    Field("default", "scalar", _SCALAR, "The value if a run gives none.", "'1.0'"),
    Field(
        "type",
        "choice",
        {"enum": ["string", "number", "boolean"]},
        "The type of the value; text is converted to it. Default: any of the three.",
        "string",
    ),
    Field(
        "options",
        "scalars",
        {"type": "array", "minItems": 1, "items": _SCALAR},
        "The allowed values.",
        "[staging, production]",
    ),
)

BACKOFF: tuple[Field, ...] = (
    Field("base", "duration", _DELAY, "The wait before the second attempt.", "1", required=True),
    Field(
        "factor",
        "factor",
        {"type": "number", "minimum": 1},
        "Each wait is this many times the previous one (default 2).",
        "2",
    ),
    Field("max", "duration", _DELAY, "The longest wait (default 5m).", "1m"),
    Field(
        "jitter",
        "boolean",
        _BOOLEAN,
        "Vary each wait randomly, between half and all of it (default true).",
        "false",
    ),
)

PORT: tuple[Field, ...] = (
    Field("id", "text", {**_TEXT, "minLength": 1}, "The port's id.", "in", required=True),
    Field("label", "text", _TEXT, "Display name.", "Message", required=True),
    Field("direction", "choice", {"enum": ["input", "output"]}, "`input` or `output`.", "input", required=True),
    Field("port_type", "text", _TEXT, "Only ports of the same type may be connected.", "json"),
    Field("color", "text", {"type": ["string", "null"]}, "The colour of the port.", "'#3b82f6'"),
)

TABLES = {"workflow": WORKFLOW, "job": JOB, "step": STEP, "input": INPUT, "backoff": BACKOFF, "port": PORT}
