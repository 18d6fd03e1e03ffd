"""The statements of the PostgreSQL store: one file for each, read once."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from holdfast.engine.postgres.arrays import Bytes, Floats, Numbers, Texts

__all__ = ["Bytes", "Floats", "Numbers", "Texts", "statement"]


@cache
def statement(name: str) -> bytes:
    """The text of a file with what it includes, without comments: psycopg keeps what it made of short ones only."""
    text = _read(f"{name}.sql")
    return " ".join(re.sub(r"(?m)^\s*--.*$", "", text).split()).encode()


def _read(file: str) -> str:
    text = files("holdfast.job").joinpath("sql", "postgres", file).read_text()
    return re.sub(r"(?m)^-- include: (\S+)$", lambda found: _read(found[1]), text)
