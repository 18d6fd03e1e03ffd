"""The SQL of the verbs: one file for each, below `sql/`, with the statements it needs by name."""

from __future__ import annotations

import re
from importlib.resources import files

SQL = files("backstay.job.stores.sqlite").joinpath("sql")
#: Folders of statements; verbs are unique over all of them.
FOLDERS = ("jobs", "runs", "records")
_NAME = re.compile(r"(?m)^-- name: (\w+)$")
_COMMENT = re.compile(r"(?m)^\s*--.*\n")


def load(verb: str) -> dict[str, str]:
    """A verb's statements, without their comments: the text is the key of sqlite3's statement cache."""
    text = next(file for folder in FOLDERS if (file := SQL.joinpath(folder, f"{verb}.sql")).is_file()).read_text()
    _, *parts = _NAME.split(text)
    return {
        name: _COMMENT.sub("", body).strip().rstrip(";") for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
