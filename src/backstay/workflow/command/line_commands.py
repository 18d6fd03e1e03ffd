"""Commands in a job's output: lines `::set-output key=value` and `::add-mask::value`.

A line that may be a command is held back until it is complete, so that no prefix of a value to be masked is shown. All
other text passes immediately and unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from backstay.workflow.command.masking import MASK
from backstay.workflow.command.outputs import LARGEST_VALUE

ADD_MASK = "::add-mask::"
SET_OUTPUT = "::set-output "
PREFIXES = (ADD_MASK, SET_OUTPUT)
#: The most characters of a line that are held back: enough for a key and the largest value.
LONGEST_LINE = LARGEST_VALUE + 1024


class LineCommands:
    """Filters one stream: `feed` returns the text to show, and calls `add_mask` and `set_output` for commands."""

    def __init__(self, *, add_mask: Callable[[str], object], set_output: Callable[[str], object]) -> None:
        self._add_mask = add_mask
        self._set_output = set_output
        self._held = ""
        self._at_line_start = True
        #: True inside an `::add-mask::` line that is too long to hold back: the rest of the line is dropped.
        self._hiding = False

    def feed(self, text: str) -> str:
        if self._hiding:
            end = text.find("\n")
            if end < 0:
                return ""
            self._hiding, text = False, text[end:]
        if self._held:
            text, self._held = self._held + text, ""
            self._at_line_start = True
        passed: list[str] = []
        place = 0
        at_line_start, self._at_line_start = self._at_line_start, text.endswith("\n") if text else self._at_line_start
        start = 0 if at_line_start and text[:1] == ":" else _find_candidate(text, 0)
        while start >= 0:
            end = text.find("\n", start)
            if end < 0:
                rest = text[start:]
                if _may_be_command(rest):
                    passed.append(text[place:start])
                    passed.append(self._hold(rest))
                    return "".join(passed)
                break
            line = text[start:end]
            if line.startswith(PREFIXES):
                passed += (text[place:start], self._execute(line))
                place = end
            start = _find_candidate(text, end)
        return text[place:] if not passed else "".join((*passed, text[place:]))

    def end(self) -> str:
        """End the stream: an unfinished line is treated as complete."""
        line, self._held = self._held, ""
        self._at_line_start, self._hiding = True, False
        return self._execute(line) if line.startswith(PREFIXES) else line

    def _hold(self, rest: str) -> str:
        """Hold back `rest`, an unfinished line that may be a command, and return "". If it is too long to be held back,
        execute it now and return the text to show for it.
        """
        if len(rest) <= LONGEST_LINE:
            self._held = rest
            return ""
        self._hiding = rest.startswith(ADD_MASK)
        return self._execute(rest)

    def _execute(self, line: str) -> str:
        """Execute the command of a line, and return the text to show for it."""
        command = line.removesuffix("\r")
        if command.startswith(ADD_MASK):
            self._add_mask(command.removeprefix(ADD_MASK))
            return ADD_MASK + MASK
        self._set_output(command.removeprefix(SET_OUTPUT))
        return line


def _find_candidate(text: str, place: int) -> int:
    """Return the start of the next line that begins with a colon; -1 if there is none."""
    found = text.find("\n:", place)
    return found + 1 if found >= 0 else -1


def _may_be_command(beginning: str) -> bool:
    return beginning.startswith(PREFIXES) or any(word.startswith(beginning) for word in PREFIXES)
