"""A command's standard output and error, from bytes to chunks of a log: decoded, obeyed, masked, cut.

Pure: bytes and times go in, chunks come out. Nothing here grows with how much is written: what is ready is to be taken.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from backstay.engine.base import Micros
from backstay.workflow.command.chunks import Chunk, Chunker
from backstay.workflow.command.line_commands import SET_OUTPUT, LineCommands
from backstay.workflow.command.masking import SHORTEST, Masker, Secrets
from backstay.workflow.command.outputs import Outputs

STDOUT, STDERR = "stdout", "stderr"
#: What Backstay itself has to say, line by line.
LOG = "log"
#: Characters of one attempt's log. What follows is read, obeyed, and not kept.
LARGEST_LOG = 64 * 1024 * 1024
#: How much of the end is kept for the error of a command that fails.
TAIL = 2000
#: Not every store has NUL in its texts; this is how it is drawn.
NUL = "\u2400"


class Streams:
    """Of one attempt. Output of its steps follows one another; `step_ended` keeps them apart."""

    def __init__(self, secrets: Secrets, outputs: Outputs, *, limit: int = LARGEST_LOG) -> None:
        self.secrets = secrets
        self.outputs = outputs
        self._chunker = Chunker()
        self._feeds = {
            STDOUT: _Feed(secrets, self._add_mask, self._set_output),
            STDERR: _Feed(secrets, self._add_mask, _ignore),
        }
        self._room = limit
        self._limit = limit
        self._left_out = 0
        self._now: Micros = 0
        self.tail = ""

    @property
    def due(self) -> Micros | None:
        """When `idle` has something to do; None: not before more arrives."""
        return self._chunker.due

    @property
    def size(self) -> int:
        """Characters that are ready to be taken."""
        return self._chunker.size

    def feed(self, stream: str, data: bytes, now: Micros) -> None:
        self._now = now
        self._show(stream, self._feeds[stream].feed(data), now)

    def idle(self, now: Micros) -> None:
        """Nothing has arrived for a moment: unfinished lines are shown."""
        self._chunker.flush(now)

    def say(self, line: str, now: Micros) -> None:
        """A line of Backstay's own, behind what has arrived."""
        self._chunker.line(LOG, self.secrets.hide(line), now)

    def step_ended(self, now: Micros) -> None:
        """A step's shell has ended, and what it wrote has been fed."""
        self._now = now
        for stream, feed in self._feeds.items():
            self._show(stream, feed.end(), now)
        self._chunker.end()

    def end(self, now: Micros) -> None:
        """Nothing follows."""
        self.step_ended(now)
        if self._left_out:
            self.say(f"{self._left_out} characters were left out: a log has at most {self._limit}", now)
            self._left_out = 0

    def take(self) -> list[Chunk]:
        """What is ready, in order."""
        return self._chunker.take()

    def _show(self, stream: str, text: str, now: Micros) -> None:
        if len(text) > self._room:
            self._left_out += len(text) - self._room
            text = text[: self._room]
        self._room -= len(text)
        if text:
            self.tail = text[-TAIL:] if len(text) >= TAIL else (self.tail + text)[-TAIL:]
            self._chunker.feed(stream, text, now)

    def _add_mask(self, secret: str) -> None:
        if not self.secrets.add(secret):
            self.say(f"::add-mask:: was left out: a mask has at least {SHORTEST} characters", self._now)

    def _set_output(self, text: str) -> None:
        key, equals, value = text.partition("=")
        if key == "name" and "::" in value:  # as others write it: name=key::value
            key, equals, value = value.partition("::")
        if equals:
            self.outputs.put(key.strip(), value, SET_OUTPUT.strip())
        else:
            self.outputs.wrong(SET_OUTPUT.strip(), "it has no value; write ::set-output key=value")


class _Feed:
    """Bytes of one stream as text that may be shown."""

    def __init__(
        self, secrets: Secrets, add_mask: Callable[[str], object], set_output: Callable[[str], object]
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._commands = LineCommands(add_mask=add_mask, set_output=set_output)
        self._masker = Masker(secrets)

    def feed(self, data: bytes) -> str:
        return self._masker.feed(self._commands.feed(self._text(data)))

    def end(self) -> str:
        rest = self._commands.feed(self._text(b"", final=True)) + self._commands.end()
        return self._masker.feed(rest) + self._masker.end()

    def _text(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if final:
            self._decoder.reset()
        return text.replace("\0", NUL) if "\0" in text else text


def _ignore(_: str) -> None:
    pass
