"""Two pipes, one reader: what a command writes is taken in the order of its arrival, and no faster than it is kept.

While the sink is slow, the pipes fill up and the command waits: a gigabyte of output needs no more memory than a line.
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

#: Bytes of one read.
READ = 64 * 1024
#: Characters that may wait for the sink before reading pauses.
HIGH = 1024 * 1024
#: Chunks wait this long for company, unless there are this many characters of them.
COMPANY, ENOUGH = 0.05, 128 * 1024

Sink = Callable[[Sequence[Chunk]], Awaitable[None]]


class Pump:
    """From two pipes through `Streams` into a sink, which is called with one batch at a time."""

    def __init__(self, streams: Streams, sink: Sink, now: Callable[[], Micros]) -> None:
        self.streams = streams
        self._sink = sink
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._ends: dict[str, int] = {}
        #: Where a command writes to.
        self.stdout, self.stderr = self._pipe(STDOUT), self._pipe(STDERR)
        self._reading = False
        self._timer: asyncio.TimerHandle | None = None
        self._stir = asyncio.Event()
        self._shutting = asyncio.Event()
        self._done = False
        #: Why the sink failed.
        self.trouble: Exception | None = None
        self._writer = self._loop.create_task(self._write())
        self._read_on()

    def _pipe(self, stream: str) -> int:
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._ends[stream] = read
        return write

    def say(self, line: str) -> None:
        """A line of Backstay's own, behind what has been read."""
        self.streams.say(line, self._now())
        self._stir.set()

    def drain(self) -> None:
        """A shell has ended: read what it has left in the pipes, and nothing that others write later on."""
        for stream, end in self._ends.items():
            left = int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)
            while left > 0 and (data := self._some(end, min(left, READ))):
                left -= len(data)
                self.streams.feed(stream, data, self._now())
        self.streams.step_ended(self._now())
        self._stir.set()

    async def close(self) -> None:
        """Everything that was read is kept by the sink; the pipes are gone."""
        if self._ends:
            self._pause()
            self.drain()
            self.streams.end(self._now())
            self._shut()
        await asyncio.shield(self._writer)

    def discard(self) -> None:
        """Let go of everything, now. What the sink has not got by then is lost. Safe twice, and after `close`."""
        self._pause()
        self._shut()
        self._writer.cancel()

    def _shut(self) -> None:
        if self._ends:
            for end in (self.stdout, self.stderr, *self._ends.values()):
                os.close(end)
            self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._done = True
        self._stir.set()
        self._shutting.set()

    # ── reading ──

    def _read_on(self) -> None:
        if not self._reading and self._ends:
            self._reading = True
            for stream, end in self._ends.items():
                self._loop.add_reader(end, self._readable, stream, end)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            for end in self._ends.values():
                self._loop.remove_reader(end)

    def _some(self, end: int, size: int) -> bytes:
        with suppress(BlockingIOError):
            return os.read(end, size)
        return b""

    def _readable(self, stream: str, end: int) -> None:
        data = self._some(end, READ)
        if not data:
            return
        self.streams.feed(stream, data, self._now())
        if self.streams.size:
            self._stir.set()
        if self.streams.size >= HIGH:
            self._pause()
        if self._timer is None and self.streams.due is not None:
            self._arm()

    def _arm(self) -> None:
        due = self.streams.due
        self._timer = None
        if due is not None and not self._done:
            self._timer = self._loop.call_later(max(0.0, (due - self._now()) / 1_000_000), self._idle)

    def _idle(self) -> None:
        self.streams.idle(self._now())
        if self.streams.size:
            self._stir.set()
        self._arm()

    # ── writing ──

    async def _write(self) -> None:
        while True:
            if not self._done:
                await self._stir.wait()
            if self.streams.size < ENOUGH and not self._done:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._shutting.wait(), COMPANY)
            self._stir.clear()
            chunks = self.streams.take()
            self._read_on()
            if chunks:
                await self._keep(chunks)
            elif self._done:
                return

    async def _keep(self, chunks: Sequence[Chunk]) -> None:
        """A sink that fails must not stop the command: what follows is read and thrown away, and told of once."""
        if self.trouble is not None:
            return
        try:
            await self._sink(chunks)
        except Exception as error:
            self.trouble = error
            log.exception("the output of a command cannot be kept")
