"""Load the SQL statements of the store. Each store operation has a file below `sql/` with named statements."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

SQL = files("backstay.job.stores.sqlite").joinpath("sql")
#: Folders of SQL files. A file's name is unique over all of them.
FOLDERS = ("jobs", "runs", "records")
_NAME = re.compile(r"(?m)^-- name: (\w+)$")
_COMMENT = re.compile(r"(?m)^\s*--.*\n")


def load(verb: str) -> dict[str, str]:
    """Return the statements of a store operation by name. Comments are removed, because sqlite3 caches prepared
    statements by their text, which should be short.
    """
    _, *parts = _NAME.split(_find(verb).read_text())
    return {
        name: _COMMENT.sub("", body).strip().rstrip(";") for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _find(verb: str) -> Traversable:
    """Return the SQL file of a store operation."""
    return next(file for folder in FOLDERS if (file := SQL.joinpath(folder, f"{verb}.sql")).is_file())
