"""Type guards and lenient casts for values that were parsed from JSON or YAML."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_mapping(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether the value is a JSON object or a YAML mapping."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def as_mapping(value: Any) -> dict[str, Any]:
    """Return the value, or an empty mapping when it is not a mapping."""
    return value if is_mapping(value) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value, or an empty list when it is not a list."""
    return value if is_list(value) else []


def as_text(value: Any) -> str:
    """Return the value, or an empty string when it is not a string."""
    return value if isinstance(value, str) else ""
