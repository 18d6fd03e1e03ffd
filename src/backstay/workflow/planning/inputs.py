"""What a run is told when it starts, checked against what its workflow takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.errors import BadInput
from backstay.workflow.definition import Input, Scalar, Workflow
from backstay.workflow.document.suggestion import meant

#: Bytes of one text.
LARGEST_INPUT = 64 * 1024
#: Beyond it, no engine keeps a number as it is.
LARGEST_NUMBER = 2**63 - 1


def checked(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Scalar]:
    """All inputs with their defaults. Raises BadInput, which names every one that is wrong."""
    known = workflow.inputs
    wrong = [f"it has no input {name!r}{meant(str(name), known)}" for name in given if name not in known]
    values: dict[str, Scalar] = {}
    for name, spec in workflow.inputs.items():
        if name not in given:
            if spec.required and spec.default is None:
                wrong.append(f"input {name!r} is missing")
            values[name] = spec.default
            continue
        try:
            values[name] = value_of(given[name], spec)
        except ValueError as error:
            wrong.append(f"input {name!r} {error}")
    if wrong:
        raise BadInput(workflow=workflow.name, reason="; ".join(wrong))
    return values


def value_of(given: Any, spec: Input) -> Scalar:
    """Text is read as what the input is: a command line and a form have nothing else. Raises ValueError."""
    if given is not None and not isinstance(given, (str, int, float, bool)):
        raise ValueError(f"is text, a number or a boolean; got {type(given).__name__}")
    value: Scalar = given
    if spec.type == "boolean":
        value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise ValueError(f"is true or false; got {value!r}")
    elif spec.type == "number":
        value = _number(value)
    elif spec.type == "string":
        value = value if isinstance(value, str) else str(value)
    if isinstance(value, (int, float)) and not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError(f"is a number between -2^63 and 2^63; got {str(given)[:40]}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("has a NUL, which no environment can carry")
    if isinstance(value, str) and len(value.encode(errors="replace")) > LARGEST_INPUT:
        raise ValueError(f"has at most {LARGEST_INPUT} bytes")
    if spec.options and value not in spec.options:
        raise ValueError(f"is one of {', '.join(map(repr, spec.options))}; got {value!r}")
    return value


def _number(value: Scalar) -> float | int:
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"is a number; got {value!r}")  # noqa: TRY004 - one kind for all that is wrong
    return value
