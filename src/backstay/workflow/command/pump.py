"""Pump a command's stdout and stderr from two pipes into a sink, in order of arrival and with backpressure. The sink is
an async function that stores a batch of log chunks.

While the sink is slow, the pipes fill up and the command blocks on its writes, so memory use is bounded for any amount
of output.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from backstay.engine.base import Micros
from backstay.workflow.command.chunks import Chunk
from backstay.workflow.command.streams import STDERR, STDOUT, Streams

log = logging.getLogger("backstay")

#: Bytes per read from a pipe.
READ = 64 * 1024
#: Reading pauses while this many characters wait for the sink.
HIGH_WATER = 1024 * 1024
#: A batch goes to the sink after this many seconds, or as soon as it has this many characters.
BATCH_DELAY, BATCH_CHARS = 0.05, 128 * 1024

Sink = Callable[[Sequence[Chunk]], Awaitable[None]]


class Pump:
    """Reads two pipes, passes the data through `Streams`, and calls the sink with one batch at a time."""

    def __init__(self, streams: Streams, sink: Sink, now: Callable[[], Micros]) -> None:
        self.streams = streams
        self._sink = sink
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._ends: dict[str, int] = {}
        #: Write ends of the pipes, for the command.
        self.stdout, self.stderr = self._pipe(STDOUT), self._pipe(STDERR)
        self._reading = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._done = False
        #: The first error of the sink. After an error, all output is discarded.
        self.sink_error: Exception | None = None
        self._writer = self._loop.create_task(self._write_batches())
        self._resume()

    def _pipe(self, stream: str) -> int:
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._ends[stream] = read
        return write

    def log_line(self, line: str) -> None:
        """Append a message of Backstay (not output of the command) to the job's log, after the output read so far."""
        self.streams.log_line(line, self._now())
        self._wake.set()

    def drain(self) -> None:
        """Read what is in the pipes now. Call it when a step's shell has ended; background processes may write more
        later.
        """
        for stream, end in self._ends.items():
            left = int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)
            while left > 0 and (data := self._read_some(end, min(left, READ))):
                left -= len(data)
                self.streams.feed(stream, data, self._now())
        self.streams.end_step(self._now())
        self._wake.set()

    async def close(self) -> None:
        """Close the pipes, and wait until the sink has all output."""
        if self._ends:
            self._pause()
            self.drain()
            self.streams.end(self._now())
            self._close_pipes()
        await asyncio.shield(self._writer)

    def discard(self) -> None:
        """Close the pipes at once. Output that the sink does not have yet is lost. Idempotent, also after `close`."""
        self._pause()
        self._close_pipes()
        self._writer.cancel()

    def _close_pipes(self) -> None:
        if self._ends:
            for end in (self.stdout, self.stderr, *self._ends.values()):
                os.close(end)
            self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._done = True
        self._wake.set()
        self._closing.set()

    # ── reading ──

    def _resume(self) -> None:
        if not self._reading and self._ends:
            self._reading = True
            for stream, end in self._ends.items():
                self._loop.add_reader(end, self._on_readable, stream, end)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            for end in self._ends.values():
                self._loop.remove_reader(end)

    def _read_some(self, end: int, size: int) -> bytes:
        with suppress(BlockingIOError):
            return os.read(end, size)
        return b""

    def _on_readable(self, stream: str, end: int) -> None:
        data = self._read_some(end, READ)
        if not data:
            return
        self.streams.feed(stream, data, self._now())
        if self.streams.size:
            self._wake.set()
        if self.streams.size >= HIGH_WATER:
            self._pause()
        if self._timer is None and self.streams.due is not None:
            self._arm_timer()

    def _arm_timer(self) -> None:
        due = self.streams.due
        self._timer = None
        if due is not None and not self._done:
            self._timer = self._loop.call_later(max(0.0, (due - self._now()) / 1_000_000), self._on_due)

    def _on_due(self) -> None:
        self.streams.flush_partial(self._now())
        if self.streams.size:
            self._wake.set()
        self._arm_timer()

    # ── writing ──

    async def _write_batches(self) -> None:
        while True:
            if not self._done:
                await self._wake.wait()
            if self.streams.size < BATCH_CHARS and not self._done:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), BATCH_DELAY)
            self._wake.clear()
            chunks = self.streams.take()
            self._resume()
            if chunks:
                await self._pass_to_sink(chunks)
            elif self._done:
                return

    async def _pass_to_sink(self, chunks: Sequence[Chunk]) -> None:
        """Call the sink. Its failure must not block the command: later output is read and discarded, and the error is
        logged once.
        """
        if self.sink_error is not None:
            return
        try:
            await self._sink(chunks)
        except Exception as error:
            self.sink_error = error
            log.exception("storing the output of a command failed; its further output is discarded")
