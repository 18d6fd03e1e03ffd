"""Edit a YAML settings file in place.

A change touches only the affected lines, so comments, order, quotes and blank lines are preserved. After each change
the text is parsed again and must contain exactly the requested data; otherwise nothing is written.
"""

from __future__ import annotations

from typing import Any, Self

from backstay.errors import WorkspaceError
from backstay.n8n.json_types import is_list, is_mapping
from backstay.n8n.workspace.json_layout import BOM
from backstay.n8n.workspace.yaml_tree import compose, contents, end_of, entries_of, is_block, plain, table
from backstay.n8n.workspace.yaml_writer import block, flow, scalar

#: The largest settings file that is read, in bytes. No hand-written file is this large.
LARGEST = 1_000_000

Path = tuple[str, ...]


class SettingsFile:
    """The text and data of one settings file. Raises WorkspaceError when it cannot be parsed."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self._before = BOM if text.startswith(BOM) else ""
        self._text = text.removeprefix(BOM)
        self._root = compose(self._text, source)
        self.data: dict[str, Any] = table(plain(self._root, source), source)

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        if len(raw) > LARGEST:
            raise WorkspaceError(f"{source}: the file is larger than {LARGEST // 1000} kB")
        try:
            return cls(raw.decode("utf-8"), source)
        except UnicodeDecodeError as error:
            raise WorkspaceError(f"{source}: the file is not UTF-8 (byte {error.start})") from error

    def text(self) -> str:
        return self._before + self._text

    # ── changes ──

    def set(self, path: Path, value: Any) -> None:
        """Set the value at a path of keys, creating missing mappings."""
        depth, node = self._find_deepest(path)
        wanted = _set_in(self.data, path, value, self.source)
        if depth == len(path):
            if wanted == self.data:
                return
            self._replace(node, value, path)
        else:
            rest = value
            for key in reversed(path[depth + 1 :]):
                rest = {key: rest}
            self._add(node, path[:depth], path[depth], rest)
        self._reread(wanted, f"set {'.'.join(path)}")

    def remove(self, path: Path) -> None:
        """Remove the key at a path with its value. A path that does not exist is ignored."""
        depth, _ = self._find_deepest(path)
        if depth < len(path):
            return
        _, parent = self._find_deepest(path[:-1])
        wanted = _remove_from(self.data, path)
        entries = parent.value
        place = next(at for at, (key, _) in enumerate(entries) if key.value == path[-1])
        if parent.flow_style or (len(entries) == 1 and path[:-1]):
            self._replace(parent, _at(wanted, path[:-1]), path[:-1])
        else:
            key, value = entries[place]
            self._cut(self._line_start(key.start_mark.index), self._line_end(end_of(key, value)))
        self._reread(wanted, f"remove {'.'.join(path)}")

    # ── text edits ──

    def _find_deepest(self, path: Path) -> tuple[int, Any]:
        """Follow the path as far as it exists. Return the number of its keys that exist, and the YAML node of the last
        one.
        """
        node = self._root
        for depth, key in enumerate(path):
            found = next((value for name, value in entries_of(node) if name.value == key), None)
            if found is None:
                return depth, node
            node = found
        return len(path), node

    def _add(self, node: Any, above: Path, key: str, value: Any) -> None:
        if node is None:  # the file is empty or has only comments
            text = self._text
            if text and not text.endswith("\n"):
                text += self._newline
            self._text = text + self._lines({key: value}, 0)
        elif entries_of(node) and not node.flow_style:
            column = node.start_mark.column
            place = self._end_of_comments(self._line_end(end_of(*node.value[-1])), column)
            self._insert_line(place, self._lines({key: value}, column))
        else:  # the mapping is in flow style (`{}`, `{a: 1}`), or the key has no value
            self._replace(node, {**(_at(self.data, above) or {}), key: value}, above)

    def _replace(self, node: Any, value: Any, path: Path) -> None:
        """Replace a key's value. A non-empty mapping or list in flow style (`{a: 1}`, `[1]`) stays in flow style."""
        start, end = node.start_mark.index, node.end_mark.index
        empty = node.id == "scalar" and start == end
        if empty:  # a key without a value: its node has the position of the next token
            start = end = self._after_colon(path)
        if not isinstance(value, (dict, list)) or not value:
            if not is_block(node):
                self._text = self._text[:start] + (" " if empty else "") + scalar(value) + self._text[end:]
                return
            self._cut(self._line_start(start), self._line_end(end_of(node, node)))
            colon = self._after_colon(path)
            self._text = f"{self._text[:colon]} {scalar(value)}{self._text[colon:]}"
            return
        if not is_block(node) and contents(node):
            self._text = self._text[:start] + flow(value) + self._text[end:]
            return
        column = self._column(path)
        if is_block(node):
            # Edit lists item by item, so that the comments of the other items are preserved.
            self._replace_items(node, value)
            return
        self._text = self._text[:start].rstrip(" ") + self._text[end:]
        self._insert_line(self._line_end(start if empty else start - 1), self._lines(value, column + 2))

    def _replace_items(self, node: Any, value: Any) -> None:
        old = plain(node, self.source)
        column = node.start_mark.column
        if is_list(old) and is_list(value) and value[: len(old)] == old:
            self._insert_line(self._line_end(end_of(node, node)), self._lines(value[len(old) :], column))
            return
        if is_list(old) and is_list(value) and value:
            kept, gone = list(value), list[int]()
            for at, item in enumerate(old):
                if kept and kept[0] == item:
                    kept.pop(0)
                else:
                    gone.append(at)
            if not kept:
                for at in reversed(gone):
                    item = node.value[at]
                    self._cut(self._line_start(item.start_mark.index), self._line_end(end_of(item, item)))
                return
        self._cut(self._line_start(node.start_mark.index), self._line_end(end_of(node, node)))
        self._insert_line(self._line_start(node.start_mark.index), self._lines(value, column))

    def _after_colon(self, path: Path) -> int:
        return self._text.index(":", self._key(path).end_mark.index) + 1

    def _key(self, path: Path) -> Any:
        _, parent = self._find_deepest(path[:-1])
        return next(name for name, _ in entries_of(parent) if name.value == path[-1])

    def _column(self, path: Path) -> int:
        """Return the column at which the key of the path's last element starts. The lines below it that contain its
        value start two columns further right.
        """
        return int(self._key(path).start_mark.column) if path else -2

    def _cut(self, start: int, end: int) -> None:
        self._text = self._text[:start] + self._text[end:].removeprefix("\r").removeprefix("\n")

    def _insert_line(self, place: int, lines: str) -> None:
        if place and place >= len(self._text) and not self._text.endswith("\n"):
            self._text += self._newline
            place = len(self._text)
        elif place < len(self._text) and self._text[place] in "\r\n":
            place = self._text.index("\n", place) + 1
        self._text = self._text[:place] + lines + self._text[place:]

    def _end_of_comments(self, place: int, column: int) -> int:
        """Return the index after the comment lines that follow the line at `place`, as far as they are indented deeper
        than `column`: such comments belong to the entry before them.
        """
        for line in self._text[place:].splitlines(keepends=True)[1:]:
            bare = line.strip()
            if not bare.startswith("#") or len(line) - len(line.lstrip(" ")) <= column:
                break
            place = self._line_end(self._text.index("\n", place) + 1)
        return place

    def _line_start(self, place: int) -> int:
        return self._text.rfind("\n", 0, place) + 1

    def _line_end(self, place: int) -> int:
        """Return the index where the line that contains `place` ends: before its LF or CRLF."""
        end = self._text.find("\n", place)
        end = len(self._text) if end < 0 else end
        return end - 1 if end and self._text[end - 1] == "\r" else end

    def _lines(self, value: Any, column: int) -> str:
        return "".join(" " * column + line + self._newline for line in block(value))

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self._text else "\n"

    def _reread(self, wanted: dict[str, Any], what: str) -> None:
        try:
            self._root = compose(self._text, self.source)
            self.data = table(plain(self._root, self.source), self.source)
        except WorkspaceError as error:
            raise WorkspaceError(
                f"{self.source}: cannot {what} without changing other lines; edit the file by hand"
            ) from error
        if self.data != wanted:
            raise WorkspaceError(f"{self.source}: cannot {what} without changing other lines; edit the file by hand")


def _set_in(data: dict[str, Any], path: Path, value: Any, source: str) -> dict[str, Any]:
    key, *rest = path
    inner = data.get(key)
    if not rest:
        return {**data, key: value}
    if inner is not None and not is_mapping(inner):
        raise WorkspaceError(f"{source}: {key} is not a mapping, so {'.'.join(path)} cannot be set")
    return {**data, key: _set_in(inner or {}, tuple(rest), value, source)}


def _remove_from(data: dict[str, Any], path: Path) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return {name: value for name, value in data.items() if name != key}
    return {**data, key: _remove_from(data[key], tuple(rest))}


def _at(data: Any, path: Path) -> Any:
    for key in path:
        data = data.get(key) if is_mapping(data) else None
    return data
