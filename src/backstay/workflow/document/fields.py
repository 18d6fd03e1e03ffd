"""Every key that a workflow's document may have: one table for the reader, the JSON Schema and the reference page."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.job.api.options import MOST_LABELS, MOST_RETRIES
from backstay.job.model import LARGEST_PRIORITY

#: What a job, an input, an axis of a matrix or an output may be called.
NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
#: A number of seconds, or with a unit.
DURATION = r"\d+(\.\d+)?\s*(ms|s|m|h|d)?"


class Field(Struct, frozen=True):
    """A key, what may stand behind it (as JSON Schema says it), and what that means."""

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
_CONDITION = {"type": ["string", "boolean"]}


def _one_or_many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


WORKFLOW: tuple[Field, ...] = (
    Field(
        "name",
        "text",
        {**_TEXT, "minLength": 1, "maxLength": 200},
        "What it is called. Without it, the file's name, if it comes from a file.",
        "ci",
    ),
    Field(
        "on",
        "any",
        {},
        "What is to start it: a word, a list, or a mapping. Kept for whoever starts runs; nothing starts by itself."
        " Always text: `on` is not a boolean here.",
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
        "What a run is told when it starts, by name. A plain value is a default.",
        "{version: {required: true}}",
    ),
    Field("env", "env", _TABLE_OF_SCALARS, "Variables of all commands. May speak of `inputs`.", "{CI: true}"),
    Field(
        "timeout",
        "duration",
        _DURATION,
        "How long a run may take; then it is cancelled. Seconds, or with ms, s, m, h, d.",
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
        "What people read instead of its id. May speak of `inputs` and `matrix`.",
        "Unit tests",
    ),
    Field(
        "needs",
        "names",
        _one_or_many(_NAME),
        "Jobs that must end before it starts: an id, or a list of them.",
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
        "Several commands, one after another, in one place. This or `run`.",
        "[{run: make}, {run: make test}]",
    ),
    Field(
        "env",
        "env",
        _TABLE_OF_SCALARS,
        "Variables of its commands, on top of the workflow's. May speak of `needs`, `inputs`, `matrix` and `env`.",
        "{LEVEL: debug}",
    ),
    Field(
        "labels",
        "labels",
        _one_or_many(_TEXT),
        f"What its worker must have, all of it; up to {MOST_LABELS}. May speak of `inputs` and `matrix`.",
        "[linux, gpu]",
    ),
    Field(
        "retries",
        "retries",
        {"type": "integer", "minimum": 0, "maximum": MOST_RETRIES},
        "Attempts after the first (0).",
        "2",
    ),
    Field(
        "backoff",
        "backoff",
        {"anyOf": [_DURATION, {"$ref": "#/$defs/backoff"}]},
        "How long it waits between attempts: seconds, or a mapping for a wait that grows.",
        "{base: 1, max: 60}",
    ),
    Field(
        "timeout",
        "duration",
        _DURATION,
        "How long an attempt may take; then it is ended and counts as failed. Seconds, or with ms, s, m, h, d.",
        "10m",
    ),
    Field(
        "if",
        "condition",
        _CONDITION,
        "Whether it is to be done. Without a status function, success() is meant as well.",
        "needs.build.outputs.changed == 'yes'",
    ),
    Field(
        "priority",
        "priority",
        {"type": "integer", "minimum": -LARGEST_PRIORITY, "maximum": LARGEST_PRIORITY},
        "More is sooner (0); a point is worth ten minutes of waiting.",
        "5",
    ),
    Field("continue-on-error", "boolean", _BOOLEAN, "Its failure holds nobody up, and is not the run's.", "true"),
    Field(
        "matrix",
        "matrix",
        {
            "type": "object",
            "minProperties": 1,
            "properties": {word: {"type": "array", "items": _TABLE_OF_SCALARS} for word in ("include", "exclude")},
            "additionalProperties": {"type": "array", "minItems": 1, "items": _SCALAR},
        },
        "One job for each combination of its lists; `exclude` takes some away, `include` adds some.",
        "{python: ['3.11', '3.12']}",
    ),
    Field(
        "outputs",
        "outputs",
        {"type": "object", "propertyNames": {"pattern": f"^{NAME}$"}, "additionalProperties": _SCALAR},
        "Outputs that are made of what its commands put out, beside those. May speak of `outputs`, too.",
        "{image: 'app:${{ outputs.tag }}'}",
    ),
    Field("working-directory", "text", _TEXT, "Where its commands run; a relative one begins at the worker's.", "web"),
    Field("shell", "text", _TEXT, "`bash`, `sh`, `python`, or a command with `{0}` for the script's file.", "bash"),
)

STEP: tuple[Field, ...] = (
    Field("name", "text", {**_TEXT, "maxLength": 500}, "What people read.", "Compile"),
    Field("run", "command", {**_TEXT, "minLength": 1}, "The command.", "make", required=True),
    Field("env", "env", _TABLE_OF_SCALARS, "Variables of this step alone, on top of the job's.", "{V: 1}"),
    Field(
        "if",
        "condition",
        _CONDITION,
        "Whether it is to be done. `outputs.<key>` are those of the steps before it.",
        "outputs.changed == 'yes'",
    ),
    Field("continue-on-error", "boolean", _BOOLEAN, "Its failure is noted, and the job goes on.", "true"),
    Field("working-directory", "text", _TEXT, "Where it runs; a relative one begins at the job's.", "docs"),
    Field("shell", "text", _TEXT, "As the job's, for this step.", "python"),
    Field("timeout", "duration", _DURATION, "How long it may take. Seconds, or with ms, s, m, h, d.", "30s"),
)

INPUT: tuple[Field, ...] = (
    Field("description", "text", _TEXT, "What people read.", "The version to be released"),
    Field("required", "boolean", _BOOLEAN, "A run cannot start without it, unless it has a default.", "true"),
    Field("default", "scalar", _SCALAR, "What it is when a run does not say.", "'1.0'"),
    Field(
        "type",
        "choice",
        {"enum": ["string", "number", "boolean"]},
        "What it must be; text is read as that. Any of them without it.",
        "string",
    ),
    Field(
        "options",
        "scalars",
        {"type": "array", "minItems": 1, "items": _SCALAR},
        "The only values that it may have.",
        "[staging, production]",
    ),
)

BACKOFF: tuple[Field, ...] = (
    Field("base", "duration", _DURATION, "Before the second attempt.", "1", required=True),
    Field(
        "factor",
        "factor",
        {"type": "number", "minimum": 1},
        "How much longer each wait is than the one before (2).",
        "2",
    ),
    Field("max", "duration", _DURATION, "The longest wait (5m).", "1m"),
    Field("jitter", "boolean", _BOOLEAN, "Between half of it and all of it, at random (true).", "false"),
)

TABLES = {"workflow": WORKFLOW, "job": JOB, "step": STEP, "input": INPUT, "backoff": BACKOFF}
