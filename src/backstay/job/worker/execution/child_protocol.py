"""The protocol between a worker and its child processes: length-prefixed msgpack messages over a socket pair."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backstay.job.model import Claimed, NewJob

#: Size of the length prefix, in bytes.
HEAD = 4

#: The name of the program's main module in a child, so that its `if __name__ == "__main__"` block does not run.
MAIN = "__mp_main__"

#: Whether this process is a child. A child must not run a worker: see `Worker.run`.
in_child = False


class Boot(msgspec.Struct, tag="boot"):
    """Configures the child: the module search path and the main module."""

    path: list[str]
    argv: list[str]
    directory: str
    main_name: str = ""
    main_path: str = ""


class Run(msgspec.Struct, tag="run"):
    """Runs the handler of a job."""

    module: str
    name: str
    job: Claimed
    ttl: float


class Interrupt(msgspec.Struct, tag="interrupt"):
    """Asks the running handler to end."""

    why: str
    reason: str


class LogWritten(msgspec.Struct, tag="say"):
    """A line for the job's log."""

    data: str
    stream: str


class Progress(msgspec.Struct, tag="progress"):
    fraction: float


class Done(msgspec.Struct, tag="done"):
    """The handler returned; `result` is encoded."""

    result: bytes
    outputs: dict[str, str] | None = None
    next: NewJob | None = None


class OutcomeRequested(msgspec.Struct, tag="asked"):
    """The handler returned or raised Retry, Snooze or Cancel. `seconds` below 0: use the job's backoff."""

    kind: str
    seconds: float
    reason: str


class Failed(msgspec.Struct, tag="failed"):
    """The handler raised. `pointless`: a retry would fail the same way."""

    kind: str
    message: str
    trace: str
    pointless: bool = False


ToChild = Boot | Run | Interrupt
ToWorker = LogWritten | Progress | Done | OutcomeRequested | Failed

_encode = msgspec.msgpack.Encoder().encode
read_to_child: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder(ToChild).decode
read_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode


def frame(message: ToChild | ToWorker) -> bytes:
    """Encode a message with its length prefix."""
    raw = _encode(message)
    return len(raw).to_bytes(HEAD) + raw
