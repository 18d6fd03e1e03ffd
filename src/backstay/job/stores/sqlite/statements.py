"""Load the SQL statements of the store: one file per operation below `sql/`, each with named statements."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

SQL = files("backstay.job.stores.sqlite").joinpath("sql")
#: Folders of statements; file names are unique over all of them.
FOLDERS = ("jobs", "runs", "records")
_NAME = re.compile(r"(?m)^-- name: (\w+)$")
_COMMENT = re.compile(r"(?m)^\s*--.*\n")


def load(verb: str) -> dict[str, str]:
    """Return the statements of an operation by name, without comments: the text is the key of sqlite3's statement
    cache.
    """
    _, *parts = _NAME.split(_find(verb).read_text())
    return {
        name: _COMMENT.sub("", body).strip().rstrip(";") for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _find(verb: str) -> Traversable:
    """Find the file of an operation in one of the folders."""
    return next(file for folder in FOLDERS if (file := SQL.joinpath(folder, f"{verb}.sql")).is_file())
