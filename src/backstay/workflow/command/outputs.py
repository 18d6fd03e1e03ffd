"""What a command puts out by name: the file in BACKSTAY_OUTPUT, and `::set-output` on its standard output.

The file has a line `key=value` for each, or for values of several lines

    key<<END
    any text
    END

where END is any word that stands alone on no line of the text. Nothing is guessed: a line that is neither is an error.
"""

from __future__ import annotations

import re

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
#: A value becomes a variable of the environment of whoever needs it; those end at 128 KiB.
LARGEST_VALUE = 64 * 1024
#: Of all keys and values of one job, in bytes.
LARGEST_TOTAL = 512 * 1024
MOST_KEYS = 1000
#: How many bad lines are told of, and how much of each.
MOST_PROBLEMS, SHOWN = 5, 80
#: What a file may have at most: everything twice, since a later value replaces an earlier one.
LARGEST_FILE = 2 * LARGEST_TOTAL

FORM = "write key=value, or key<<END and the lines up to END"


class Outputs:
    """Values by key, bounded, and what was wrong with the others."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.problems: list[str] = []
        self._size = 0

    def put(self, key: str, value: str, where: str) -> None:
        if not KEY.fullmatch(key):
            self.wrong(where, f"{shown(key)} is not a name: letters, digits, _ - . and at most 128 of them")
        elif "\0" in value:
            self.wrong(where, f"the value of {key} has a NUL, which no environment can carry")
        elif (size := len(value.encode(errors="replace"))) > LARGEST_VALUE:
            self.wrong(
                where, f"the value of {key} has {size} bytes, and at most {LARGEST_VALUE} are kept; leave a file"
            )
        elif key not in self.values and len(self.values) >= MOST_KEYS:
            self.wrong(where, f"{key} is one too many: there may be {MOST_KEYS}")
        else:
            before = self.values.get(key)
            grown = self._size + len(key) + size
            if before is not None:
                grown -= len(key) + len(before.encode(errors="replace"))
            if grown > LARGEST_TOTAL:
                self.wrong(where, f"with {key} the outputs have {grown} bytes, and at most {LARGEST_TOTAL} are kept")
                return
            self._size = grown
            self.values[key] = value

    def wrong(self, where: str, what: str) -> None:
        """A bad line. The first few are told of."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"{where}: {what}")
        elif len(self.problems) == MOST_PROBLEMS:
            self.problems.append("and more")

    def read(self, raw: bytes, where: str) -> None:
        """The file of one step."""
        if len(raw) > LARGEST_FILE:
            self.wrong(where, f"it has {len(raw)} bytes, and at most {LARGEST_FILE} are read")
            return
        lines = raw.split(b"\n")
        number = 0
        while number < len(lines):
            at = f"line {number + 1} of {where}"
            line = self._text(lines[number], at)
            number += 1
            if line is None or not line.strip():
                continue
            key, mark, rest = _split(line)
            if not mark:
                self.wrong(at, f"{shown(line)} is no output; {FORM}")
            elif mark == "=":
                self.put(key, rest, at)
            else:
                number = self._block(lines, number, key, rest.strip(), at)

    def _block(self, lines: list[bytes], number: int, key: str, end: str, at: str) -> int:
        """The lines of one value; answers where the next one begins."""
        if not end:
            self.wrong(at, f"{key}<< names no word to end at; {FORM}")
            return number
        value: list[str] = []
        for place in range(number, len(lines)):
            line = self._text(lines[place], f"the value of {key} at {at}")
            if line == end:
                self.put(key, "\n".join(value), at)
                return place + 1
            value.append(line or "")
        self.wrong(at, f"the value of {key} does not end: no line is {shown(end)}")
        return len(lines)

    def _text(self, raw: bytes, at: str) -> str | None:
        try:
            return raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            self.wrong(at, f"{shown(raw.decode(errors='replace'))} is not UTF-8")
            return None


def _split(line: str) -> tuple[str, str, str]:
    """Key, "=" or "<<", and what follows; whichever mark comes first counts."""
    key, mark, value = line.partition("=")
    if "<<" in key:
        key, mark, value = line.partition("<<")
    return key.strip(), mark, value


def shown(text: str) -> str:
    """A bad line in an error: quoted, and not all of it."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
