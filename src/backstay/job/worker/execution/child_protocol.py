"""What a worker and its child processes say to one another: msgpack behind its length, over a pair of sockets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backstay.job.model import Claimed, NewJob

#: Bytes of a length.
HEAD = 4

#: What a program's main module is called in a child, so that its `if __name__ == "__main__"` stays out of it.
MAIN = "__mp_main__"

#: Whether this process is such a child, which must not become a worker: see `Worker.run`.
in_child = False


class Boot(msgspec.Struct, tag="boot"):
    """Where modules are found, and what the main module is."""

    path: list[str]
    argv: list[str]
    directory: str
    main_name: str = ""
    main_path: str = ""


class Run(msgspec.Struct, tag="run"):
    """Run the handler of a job."""

    module: str
    name: str
    job: Claimed
    ttl: float


class Interrupt(msgspec.Struct, tag="interrupt"):
    """The handler is to end."""

    why: str
    reason: str


class Say(msgspec.Struct, tag="say"):
    """A line for the job's log."""

    data: str
    stream: str


class Progress(msgspec.Struct, tag="progress"):
    fraction: float


class Done(msgspec.Struct, tag="done"):
    """It returned; the result is encoded already."""

    result: bytes
    outputs: dict[str, str] | None = None
    next: NewJob | None = None


class Asked(msgspec.Struct, tag="asked"):
    """It returned or raised an outcome: retry, snooze or cancel. `seconds` below 0: as the back-off says."""

    kind: str
    seconds: float
    reason: str


class Failed(msgspec.Struct, tag="failed"):
    """It raised. `pointless`: it would again."""

    kind: str
    message: str
    trace: str
    pointless: bool = False


ToChild = Boot | Run | Interrupt
ToWorker = Say | Progress | Done | Asked | Failed

_encode = msgspec.msgpack.Encoder().encode
read_to_child: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder(ToChild).decode
read_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode


def frame(message: ToChild | ToWorker) -> bytes:
    raw = _encode(message)
    return len(raw).to_bytes(HEAD) + raw
