"""The statements of the PostgreSQL store: one file for each, read once."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from backstay.engine.postgres.connection.arrays import Bytes, Floats, Numbers, RowLocations, Texts

__all__ = ["Bytes", "Floats", "Numbers", "RowLocations", "Texts", "readable", "statement", "storable"]


@cache
def statement(name: str) -> bytes:
    """The text of a file with what it includes, without comments: psycopg keeps what it made of short ones only."""
    text = _read(f"{name}.sql")
    return " ".join(re.sub(r"(?m)^\s*--.*$", "", text).split()).encode()


def _read(file: str) -> str:
    text = files("backstay.job.stores.postgres").joinpath("sql", file).read_text()
    return re.sub(r"(?m)^-- include: (\S+)$", lambda found: _read(found[1]), text)


def storable(text: str) -> str:
    """Any text as one that PostgreSQL takes: it has no NUL. Different texts stay different."""
    if "\x00" not in text and "\x1a" not in text:
        return text
    return text.replace("\x1a", "\x1a1").replace("\x00", "\x1a0")


def readable(text: str) -> str:
    """What `storable` made of a text, as it was."""
    return text.replace("\x1a0", "\x00").replace("\x1a1", "\x1a") if "\x1a" in text else text
