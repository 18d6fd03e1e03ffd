"""The files of a workspace during one command: reads see the disk and the command's own writes, and writes stay in
memory until the commit.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from backstay.errors import WorkspaceError

Action = Literal["create", "update", "delete"]
#: The folder for the workspace's lock file and for the journal, with which an interrupted command is rolled back.
PRIVATE = ".backstay"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file's content before and after a change. None: the file does not exist."""

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
    """A workspace's files, including the pending changes of one command. Paths are relative and use `/`."""

    root: Path
    _before: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    _after: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    #: The original contents of files that a checkpoint has already written.
    _original: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])

    def read(self, path: str) -> bytes | None:
        """Return the file's content after the pending changes; None when it does not exist then."""
        if path in self._after:
            return self._after[path]
        return self._on_disk(path)

    def exists(self, path: str) -> bool:
        return self.read(path) is not None

    def write(self, path: str, content: bytes) -> None:
        self._on_disk(path)
        self._after[path] = content

    def delete(self, path: str) -> None:
        self._on_disk(path)
        self._after[path] = None

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the names of a folder's files with this suffix, without the suffix. Hidden files are ignored."""
        there = resolve_inside(self.root, folder)
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
    def changes(self) -> list[FileChange]:
        """The pending changes, in the order in which they were made."""
        return self._since(self._before)

    @property
    def all_changes(self) -> list[FileChange]:
        """The pending changes, and those that this command has already written to disk (`Workspace.checkpoint`)."""
        return self._since({**self._before, **self._original})

    def _since(self, before: dict[str, bytes | None]) -> list[FileChange]:
        return [
            FileChange(path, before[path], content) for path, content in self._after.items() if content != before[path]
        ]

    def mark_written(self) -> None:
        """Record that a checkpoint has written all pending changes to disk."""
        self._original = {**self._before, **self._original}
        self._before.update(self._after)

    def diff(self) -> str:
        return "".join(change.diff() for change in self.changes)

    def _on_disk(self, path: str) -> bytes | None:
        """Return the content that the file had on disk when this command first read it. The commit reads the file
        again: if the content has changed since, another process wrote it, and a commit would overwrite that (lost
        update).
        """
        if path not in self._before:
            self._before[path] = read_content(resolve_inside(self.root, path), path)
        return self._before[path]


def read_content(place: Path, path: str) -> bytes | None:
    try:
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror or error}") from error


def resolve_inside(root: Path, path: str) -> Path:
    """Return the absolute path. Raise WorkspaceError when it leaves the workspace by `..`, as an absolute path or
    through a symlink.
    """
    parts = path.split("/")
    if path.startswith(("/", "~")) or "\\" in path or "\0" in path or ".." in parts:
        raise WorkspaceError(f"{path!r} is outside the workspace: use a relative path below it, with /")
    try:
        top = root.resolve()
        place = (top / path).resolve()
    except (OSError, RuntimeError) as error:
        raise WorkspaceError(f"{path!r} cannot be resolved: {error}") from error
    if not place.is_relative_to(top):
        raise WorkspaceError(f"{path!r} leads out of the workspace through a symlink")
    return place
