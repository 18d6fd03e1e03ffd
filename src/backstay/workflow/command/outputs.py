"""Named outputs of a command, from the file in BACKSTAY_OUTPUT and from `::set-output` on its standard output.

The file has one line `key=value` per output, or for a value of several lines

    key<<END
    any text
    END

where END is a word that is not a line of the text. Any other line is an error.
"""

from __future__ import annotations

import re

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
#: The most bytes of a value. It becomes an environment variable of dependent commands; Linux allows 128 KiB.
LARGEST_VALUE = 64 * 1024
#: The most bytes of all keys and values of one job.
LARGEST_TOTAL = 512 * 1024
MOST_KEYS = 1000
#: An error message shows at most this many malformed lines, and this many characters of each.
MOST_PROBLEMS, SHOWN = 5, 80
#: Largest outputs file, in bytes: twice the limit of all outputs, because a later value may replace an earlier one.
LARGEST_FILE = 2 * LARGEST_TOTAL

FORM = "write key=value, or key<<END and the lines up to END"


class Outputs:
    """Collects the outputs of a job by key. An output that is malformed or exceeds a limit above is rejected and added
    to `problems`.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.problems: list[str] = []
        self._size = 0

    def put(self, key: str, value: str, where: str) -> None:
        if not KEY.fullmatch(key):
            self.add_problem(
                where, f"{quote_excerpt(key)} is not a valid key: use letters, digits, _ - . and at most 128 characters"
            )
        elif "\0" in value:
            self.add_problem(
                where, f"the value of {key} contains a NUL character, which environment variables cannot hold"
            )
        elif (size := len(value.encode(errors="replace"))) > LARGEST_VALUE:
            self.add_problem(
                where, f"the value of {key} has {size} bytes, but at most {LARGEST_VALUE} are allowed; use an artifact"
            )
        elif key not in self.values and len(self.values) >= MOST_KEYS:
            self.add_problem(where, f"{key} exceeds the limit of {MOST_KEYS} outputs")
        else:
            before = self.values.get(key)
            grown = self._size + len(key) + size
            if before is not None:
                grown -= len(key) + len(before.encode(errors="replace"))
            if grown > LARGEST_TOTAL:
                self.add_problem(
                    where, f"with {key} the outputs have {grown} bytes, but at most {LARGEST_TOTAL} are allowed"
                )
                return
            self._size = grown
            self.values[key] = value

    def add_problem(self, where: str, what: str) -> None:
        """Add a problem; only the first few are kept."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"{where}: {what}")
        elif len(self.problems) == MOST_PROBLEMS:
            self.problems.append("and more")

    def read(self, raw: bytes, where: str) -> None:
        """Read the output file of one step."""
        if len(raw) > LARGEST_FILE:
            self.add_problem(where, f"the file has {len(raw)} bytes, but at most {LARGEST_FILE} are allowed")
            return
        lines = raw.split(b"\n")
        number = 0
        while number < len(lines):
            at = f"line {number + 1} of {where}"
            line = self._decode_line(lines[number], at)
            number += 1
            if line is None or not line.strip():
                continue
            key, mark, rest = _split_line(line)
            if not mark:
                self.add_problem(at, f"{quote_excerpt(line)} is not an output; {FORM}")
            elif mark == "=":
                self.put(key, rest, at)
            else:
                number = self._read_block(lines, number, key, rest.strip(), at)

    def _read_block(self, lines: list[bytes], number: int, key: str, end: str, at: str) -> int:
        """Read a value of several lines, up to the line `end`. Returns the index of the line after it."""
        if not end:
            self.add_problem(at, f"{key}<< has no end word; {FORM}")
            return number
        value: list[str] = []
        for place in range(number, len(lines)):
            line = self._decode_line(lines[place], f"the value of {key} at {at}")
            if line == end:
                self.put(key, "\n".join(value), at)
                return place + 1
            value.append(line or "")
        self.add_problem(at, f"the value of {key} has no end: no line is {quote_excerpt(end)}")
        return len(lines)

    def _decode_line(self, raw: bytes, at: str) -> str | None:
        try:
            return raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            self.add_problem(at, f"{quote_excerpt(raw.decode(errors='replace'))} is not UTF-8")
            return None


def _split_line(line: str) -> tuple[str, str, str]:
    """Split a line into the key, the separator ("=" or "<<", whichever comes first), and the rest."""
    key, mark, value = line.partition("=")
    if "<<" in key:
        key, mark, value = line.partition("<<")
    return key.strip(), mark, value


def quote_excerpt(text: str) -> str:
    """Quote the beginning of a bad line for a message."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
