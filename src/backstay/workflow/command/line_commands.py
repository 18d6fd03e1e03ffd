"""Lines of a command's output that speak to Backstay: `::set-output key=value` and `::add-mask::value`.

A line that may be one is held back until it is whole, so that nobody sees the beginning of a value that is to be
masked. All other text passes at once and unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from backstay.workflow.command.masking import MASK
from backstay.workflow.command.outputs import LARGEST_VALUE

ADD_MASK = "::add-mask::"
SET_OUTPUT = "::set-output "
WORDS = (ADD_MASK, SET_OUTPUT)
#: How much of a line is held back: a key and the largest value, roughly.
LONGEST_LINE = LARGEST_VALUE + 1024


class LineCommands:
    """One stream. `feed` answers what passes; commands are told as they are found."""

    def __init__(self, *, add_mask: Callable[[str], object], set_output: Callable[[str], object]) -> None:
        self._add_mask = add_mask
        self._set_output = set_output
        self._held = ""
        self._fresh = True
        #: Inside a line that is too long to be held, and must not be shown.
        self._hiding = False

    def feed(self, text: str) -> str:
        if self._hiding:
            end = text.find("\n")
            if end < 0:
                return ""
            self._hiding, text = False, text[end:]
        if self._held:
            text, self._held = self._held + text, ""
            self._fresh = True
        passed: list[str] = []
        place = 0
        fresh, self._fresh = self._fresh, text.endswith("\n") if text else self._fresh
        start = 0 if fresh and text[:1] == ":" else _line(text, 0)
        while start >= 0:
            end = text.find("\n", start)
            if end < 0:
                rest = text[start:]
                if _may_be(rest):
                    passed.append(text[place:start])
                    passed.append(self._hold(rest))
                    return "".join(passed)
                break
            line = text[start:end]
            if line.startswith(WORDS):
                passed += (text[place:start], self._obey(line))
                place = end
            start = _line(text, end)
        return text[place:] if not passed else "".join((*passed, text[place:]))

    def end(self) -> str:
        """Nothing follows: a line without its end counts as it is."""
        line, self._held = self._held, ""
        self._fresh, self._hiding = True, False
        return self._obey(line) if line.startswith(WORDS) else line

    def _hold(self, rest: str) -> str:
        """Keep the beginning of a line; answers what is shown of one that is too long to be kept."""
        if len(rest) <= LONGEST_LINE:
            self._held = rest
            return ""
        self._hiding = rest.startswith(ADD_MASK)
        return self._obey(rest)

    def _obey(self, line: str) -> str:
        """Carry out a whole line; answers what is shown of it."""
        said = line.removesuffix("\r")
        if said.startswith(ADD_MASK):
            self._add_mask(said.removeprefix(ADD_MASK))
            return ADD_MASK + MASK
        self._set_output(said.removeprefix(SET_OUTPUT))
        return line


def _line(text: str, place: int) -> int:
    """Where the next line begins that starts with a colon; -1: nowhere."""
    found = text.find("\n:", place)
    return found + 1 if found >= 0 else -1


def _may_be(beginning: str) -> bool:
    return beginning.startswith(WORDS) or any(word.startswith(beginning) for word in WORDS)
