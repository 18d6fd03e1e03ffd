"""What a command is about to do to a workspace's files: read through, kept in memory, shown as a diff."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from backstay.errors import WorkspaceError

Action = Literal["create", "update", "delete"]
#: Everything that we keep for ourselves in a workspace: the lock, and what an interrupted command left.
PRIVATE = ".backstay"


@dataclass(frozen=True, slots=True)
class Change:
    """One file before and after. None: there is none."""

    path: str
    before: bytes | None
    after: bytes | None

    @property
    def action(self) -> Action:
        if self.before is None:
            return "create"
        return "delete" if self.after is None else "update"

    def diff(self) -> str:
        old, new = (_lines(side) for side in (self.before, self.after))
        a, b = ("/dev/null" if side is None else self.path for side in (self.before, self.after))
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, a, b)
        )


def _lines(side: bytes | None) -> list[str]:
    return [] if side is None else side.decode("utf-8", errors="replace").splitlines(keepends=True)


@dataclass(slots=True)
class Files:
    """A workspace's files with the changes of one command on top. Paths are relative, with `/`."""

    root: Path
    _before: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    _after: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    #: Before what is written for good already.
    _first: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])

    def read(self, path: str) -> bytes | None:
        """What the file will hold; None where it will not be."""
        if path in self._after:
            return self._after[path]
        return self._now(path)

    def exists(self, path: str) -> bool:
        return self.read(path) is not None

    def write(self, path: str, content: bytes) -> None:
        self._now(path)
        self._after[path] = content

    def delete(self, path: str) -> None:
        self._now(path)
        self._after[path] = None

    def names(self, folder: str, suffix: str) -> list[str]:
        """What the files of a folder with this suffix are called, without it. Hidden ones are nobody's."""
        there = inside(self.root, folder)
        try:
            found = {entry.name for entry in there.iterdir() if entry.is_file()} if there.is_dir() else set[str]()
        except OSError as error:
            raise WorkspaceError(f"{folder} cannot be read: {error.strerror or error}") from error
        for path, content in self._after.items():
            above, _, name = path.rpartition("/")
            if above == folder:
                (found.discard if content is None else found.add)(name)
        return sorted(name.removesuffix(suffix) for name in found if name.endswith(suffix) and name[0] != ".")

    @property
    def changes(self) -> list[Change]:
        """What is yet to be written, in the order in which it was asked for."""
        return self._since(self._before)

    @property
    def all_changes(self) -> list[Change]:
        """The same with what is written for good already."""
        return self._since({**self._before, **self._first})

    def _since(self, before: dict[str, bytes | None]) -> list[Change]:
        return [Change(path, before[path], content) for path, content in self._after.items() if content != before[path]]

    def settle(self) -> None:
        """What was to be written is written."""
        self._first = {**self._before, **self._first}
        self._before.update(self._after)

    def diff(self) -> str:
        return "".join(change.diff() for change in self.changes)

    def _now(self, path: str) -> bytes | None:
        """Read once: what we decide on is what we compare with before we write."""
        if path not in self._before:
            self._before[path] = content_of(inside(self.root, path), path)
        return self._before[path]


def content_of(place: Path, path: str) -> bytes | None:
    try:
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror or error}") from error


def inside(root: Path, path: str) -> Path:
    """Where a relative path leads. Raises WorkspaceError when that is outside, by `..`, absolutely or by a link."""
    parts = path.split("/")
    if path.startswith(("/", "~")) or "\\" in path or "\0" in path or ".." in parts:
        raise WorkspaceError(f"{path!r} leads out of the workspace: use a path below it, with /")
    try:
        top = root.resolve()
        place = (top / path).resolve()
    except (OSError, RuntimeError) as error:
        raise WorkspaceError(f"{path!r} cannot be followed: {error}") from error
    if not place.is_relative_to(top):
        raise WorkspaceError(f"{path!r} leads out of the workspace, by a link")
    return place
