"""Validate the inputs of a run against the inputs that its workflow declares."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from backstay.errors import BadInput
from backstay.workflow.definition import Input, Scalar, Workflow
from backstay.workflow.document.effort import Hints
from backstay.workflow.document.nodes import quote

#: The largest number of unknown inputs that an error names.
MOST_NAMED = 20
#: Largest text input, in bytes.
LARGEST_INPUT = 64 * 1024
#: Largest integer input: engines do not store larger integers exactly.
LARGEST_NUMBER = 2**63 - 1


def validate_inputs(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return all inputs, with defaults for those not given. Raises BadInput, which names every wrong input; of unknown
    ones, the first MOST_NAMED.
    """
    known = workflow.inputs
    hints = Hints()
    unknown = (str(name) for name in given if name not in known)
    wrong = [f"unknown input {quote(name)}{hints.suggest(name, known)}" for name in islice(unknown, MOST_NAMED)]
    if more := sum(1 for _ in unknown):
        wrong.append(f"{more} more unknown inputs")
    values: dict[str, Scalar] = {}
    for name, spec in workflow.inputs.items():
        if name not in given:
            if spec.required and spec.default is None:
                wrong.append(f"input {name!r} is missing")
            values[name] = spec.default
            continue
        try:
            values[name] = coerce_input(given[name], spec)
        except ValueError as error:
            wrong.append(f"input {name!r} {error}")
    if wrong:
        raise BadInput(workflow=workflow.name, reason="; ".join(wrong))
    return values


def coerce_input(given: Any, spec: Input) -> Scalar:
    """Convert a value to the input's declared type. Text is accepted for every type: command lines and forms send only
    text. Raises ValueError. Its message, such as "must be true or false", continues a sentence that begins with the
    input's name.
    """
    if given is not None and not isinstance(given, (str, int, float, bool)):
        raise ValueError(f"must be text, a number or a boolean; got {type(given).__name__}")
    value: Scalar = given
    if spec.type == "boolean":
        value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false; got {value!r}")
    elif spec.type == "number":
        value = _number(value)
    elif spec.type == "string":
        value = value if isinstance(value, str) else str(value)
    if isinstance(value, (int, float)) and not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError(f"must be a number between -2^63 and 2^63; got {str(given)[:40]}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("contains a NUL character, which environment variables cannot hold")
    if isinstance(value, str) and len(value.encode(errors="replace")) > LARGEST_INPUT:
        raise ValueError(f"may have at most {LARGEST_INPUT} bytes")
    if spec.options and value not in spec.options:
        raise ValueError(f"must be one of {', '.join(map(repr, spec.options))}; got {value!r}")
    return value


def _number(value: Scalar) -> float | int:
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"must be a number; got {value!r}")  # noqa: TRY004 - one exception type for all errors
    return value
