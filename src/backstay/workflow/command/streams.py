"""Turn the bytes of a command's stdout and stderr into log chunks: decode, execute line commands (such as
`::set-output`), mask secrets, split.

No I/O and no clock: bytes and times go in, chunks come out. Memory is bounded if the caller takes finished chunks.
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
#: The stream of Backstay's own log lines.
LOG = "log"
#: The most characters of one attempt's log. Later output is dropped, but line commands in it are still executed.
LARGEST_LOG = 64 * 1024 * 1024
#: Characters of the last output that the error of a failed command includes.
TAIL = 2000
#: Replaces NUL characters, which PostgreSQL text cannot hold.
NUL = "\u2400"


class Streams:
    """The streams of one attempt. Call `end_step` between steps, so that no log line spans two steps."""

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
        self._dropped = 0
        self._now: Micros = 0
        self.tail = ""

    @property
    def due(self) -> Micros | None:
        """The time at which to call `flush_partial`; None: there is no unfinished line."""
        return self._chunker.due

    @property
    def size(self) -> int:
        """Characters of the chunks that `take` would return."""
        return self._chunker.size

    def feed(self, stream: str, data: bytes, now: Micros) -> None:
        self._now = now
        self._show(stream, self._feeds[stream].feed(data), now)

    def flush_partial(self, now: Micros) -> None:
        """Turn unfinished lines that have waited long enough into chunks."""
        self._chunker.flush(now)

    def log_line(self, line: str, now: Micros) -> None:
        """Append a message of Backstay (not output of the command) to the job's log, after the text fed so far."""
        self._chunker.append_line(LOG, self.secrets.hide(line), now)

    def end_step(self, now: Micros) -> None:
        """Flush held-back text and unfinished lines. Call it when a step's shell has ended and its output was fed."""
        self._now = now
        for stream, feed in self._feeds.items():
            self._show(stream, feed.end(), now)
        self._chunker.end()

    def end(self, now: Micros) -> None:
        """Flush everything, and log how many characters were dropped."""
        self.end_step(now)
        if self._dropped:
            self.log_line(f"{self._dropped} characters were dropped: a log may have at most {self._limit}", now)
            self._dropped = 0

    def take(self) -> list[Chunk]:
        """Return and remove the finished chunks, in order."""
        return self._chunker.take()

    def _show(self, stream: str, text: str, now: Micros) -> None:
        if len(text) > self._room:
            self._dropped += len(text) - self._room
            text = text[: self._room]
        self._room -= len(text)
        if text:
            self.tail = text[-TAIL:] if len(text) >= TAIL else (self.tail + text)[-TAIL:]
            self._chunker.feed(stream, text, now)

    def _add_mask(self, secret: str) -> None:
        if not self.secrets.add(secret):
            self.log_line(f"::add-mask:: was ignored: a mask must have at least {SHORTEST} characters", self._now)

    def _set_output(self, text: str) -> None:
        key, equals, value = text.partition("=")
        if key == "name" and "::" in value:  # GitHub Actions syntax: name=key::value
            key, equals, value = value.partition("::")
        if equals:
            self.outputs.put(key.strip(), value, SET_OUTPUT.strip())
        else:
            self.outputs.add_problem(SET_OUTPUT.strip(), "it has no value; write ::set-output key=value")


class _Feed:
    """Converts the bytes of one stream to log text: decodes them, executes line commands, and masks secrets."""

    def __init__(
        self, secrets: Secrets, add_mask: Callable[[str], object], set_output: Callable[[str], object]
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._commands = LineCommands(add_mask=add_mask, set_output=set_output)
        self._masker = Masker(secrets)

    def feed(self, data: bytes) -> str:
        return self._masker.feed(self._commands.feed(self._decode(data)))

    def end(self) -> str:
        rest = self._commands.feed(self._decode(b"", final=True)) + self._commands.end()
        return self._masker.feed(rest) + self._masker.end()

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if final:
            self._decoder.reset()
        return text.replace("\0", NUL) if "\0" in text else text


def _ignore(_: str) -> None:
    pass
