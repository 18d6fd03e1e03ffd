"""The protocol between a worker and its child processes: length-prefixed msgpack messages over a socket pair."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backstay.job.exchange import Claimed
from backstay.job.model import NewJob

#: Size of the length prefix, in bytes.
HEAD = 4

#: The name under which a child imports the program's main module, so that its `if __name__ == "__main__"` block does
#: not run.
MAIN = "__mp_main__"

#: Whether this process is a worker's child. It must not run a worker itself: see `Worker.run`.
in_child = False


class Boot(msgspec.Struct, tag="boot"):
    """The first message to a child: module search path, command line arguments, directory and main module of the
    worker's program.
    """

    path: list[str]
    argv: list[str]
    directory: str
    main_name: str = ""
    main_path: str = ""


class RunHandler(msgspec.Struct, tag="run"):
    """To the child: run the handler `name` of `module` for this job."""

    module: str
    name: str
    job: Claimed
    ttl: float


class Interrupt(msgspec.Struct, tag="interrupt"):
    """To the child: the running handler must end. `why`: "timeout", "cancelled", "stopping" or "lost" (the lease is
    lost).
    """

    why: str
    reason: str


class LogWritten(msgspec.Struct, tag="say"):
    """From the child: the handler wrote a line to the job's log."""

    data: str
    stream: str


class ProgressReported(msgspec.Struct, tag="progress"):
    """From the child: the handler reported its progress, from 0 to 1."""

    fraction: float


class HandlerReturned(msgspec.Struct, tag="done"):
    """From the child: the handler returned; `result` is encoded."""

    result: bytes
    outputs: dict[str, str] | None = None
    next: NewJob | None = None


class OutcomeRequested(msgspec.Struct, tag="asked"):
    """From the child: the handler returned or raised Retry, Snooze or Cancel. If `seconds` is negative, the job's
    backoff decides when it is retried.
    """

    kind: str
    seconds: float
    reason: str


class HandlerFailed(msgspec.Struct, tag="failed"):
    """From the child: the handler raised an exception. `pointless`: a retry would fail in the same way."""

    kind: str
    message: str
    trace: str
    pointless: bool = False


ToChild = Boot | RunHandler | Interrupt
ToWorker = LogWritten | ProgressReported | HandlerReturned | OutcomeRequested | HandlerFailed

_encode = msgspec.msgpack.Encoder().encode
read_to_child: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder(ToChild).decode
read_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode


def frame(message: ToChild | ToWorker) -> bytes:
    """Encode a message with its length prefix."""
    raw = _encode(message)
    return len(raw).to_bytes(HEAD) + raw
