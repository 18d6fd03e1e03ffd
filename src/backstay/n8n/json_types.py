"""What JSON and YAML are made of, told to the type checkers."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    """An object of JSON, a mapping of YAML."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def table(value: Any) -> dict[str, Any]:
    """What is none counts as an empty one."""
    return value if is_table(value) else {}


def items(value: Any) -> list[Any]:
    """The same for lists."""
    return value if is_list(value) else []


def text(value: Any) -> str:
    """The same for strings."""
    return value if isinstance(value, str) else ""
