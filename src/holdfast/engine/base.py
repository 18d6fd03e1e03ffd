"""The engine contract: what remembers. Rooms hand over operations; an engine carries each out atomically.

An operation is data, so that the event loop, the blocking API and the keeper thread all use one door.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.errors import CorruptRecord

S = TypeVar("S", bound="Record")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Microseconds since the epoch by the engine's clock. Below 2**53, so Lua holds it exactly.
Micros = int


def steady() -> float:
    """Seconds of a clock that is never set, and that also runs while a laptop sleeps."""
    return time.clock_gettime(_BOOT)


_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Wake(NamedTuple):
    """A hint for one process: `payload` goes to the channel `inbox`. May be lost; never carries truth."""

    inbox: str
    payload: str


class Step(NamedTuple, Generic[S]):
    """What a machine decided: the next state, the reply, whom to wake, and until when the row matters."""

    state: S | None
    reply: Any
    wakes: tuple[Wake, ...] = ()
    keep_until: Micros = 0
    #: False: nothing changed, so nothing is written.
    write: bool = True


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine states. `version` is bumped when the stored shape changes."""

    version: int


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine commands. Past `not_after` (engine time) a command has no effect: a request
    delayed on an abandoned connection must not act for nobody.
    """

    not_after: Micros


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """The command came too late and did nothing. `now` lets the client correct its idea of engine time."""

    now: Micros


class Room(Generic[S]):
    """A machine with everything an engine needs to run it: `step` for SQL, one Lua file per command for Redis."""

    def __init__(
        self,
        name: str,
        *,
        step: Callable[[S | None, Any, Micros], Step[S]],
        state: type[S],
        version: int,
        replies: Any,
        package: str,
    ) -> None:
        self.name = name
        self.version = version
        self.step = step
        self.package = package
        self._state = msgspec.msgpack.Decoder(state)
        self._replies = msgspec.msgpack.Decoder(replies)
        self.encode = msgspec.msgpack.Encoder().encode

    def decode_state(self, name: str, raw: bytes) -> S:
        try:
            state = self._state.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptRecord(f"the {self.name} record {name!r} cannot be read: {error}") from error
        if state.version != self.version:
            raise CorruptRecord(
                f"the {self.name} record {name!r} is of version {state.version}, this process reads {self.version}"
            )
        return state

    def decode_reply(self, raw: bytes) -> Any:
        return self._replies.decode(raw)

    def script(self, command: type[Command]) -> str:
        """The Lua source of a command: the room's shared prelude, then the file named after it."""
        folder = files(self.package)
        file = "".join("_" + c.lower() if c.isupper() else c for c in command.__name__).lstrip("_")
        prelude = folder.joinpath(f"_{self.name}.lua").read_text()
        return prelude + folder.joinpath(f"{file}.lua").read_text()


class Op(Generic[T_co]):
    """One operation; the type parameter is what it answers."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Apply(Op[Any]):
    """Run one machine command, atomic on its name."""

    room: Room[Any]
    name: str
    command: Command


@dataclass(frozen=True, slots=True)
class Reading(Generic[S]):
    """A state as stored, and the engine's clock at that moment."""

    now: Micros
    state: S | None


@dataclass(frozen=True, slots=True)
class Read(Op[Reading[Any]]):
    """Look at one name without changing it."""

    room: Room[Any]
    name: str


@dataclass(frozen=True, slots=True)
class Scan(Op[list[str]]):
    """Names of a room that start with `prefix`, sorted. Walks all names: for people, not for programs."""

    room: Room[Any]
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Tag(Op[None]):
    """Remember `name` under `tag` for `ttl` µs. An index that may hold too much, never too little."""

    room: Room[Any]
    tag: str
    name: str
    ttl: Micros


@dataclass(frozen=True, slots=True)
class Tagged(Op[list[str]]):
    """The names remembered under `tag`, sorted."""

    room: Room[Any]
    tag: str


@dataclass(frozen=True, slots=True)
class Untag(Op[None]):
    """Forget names under `tag`."""

    room: Room[Any]
    tag: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Publish(Op[None]):
    """Send a hint to a channel. Fire and forget."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Ping(Op[Micros]):
    """Reach the engine; answers its clock."""


class Engine(Protocol):
    """Carries out operations on its own clock. Each is atomic; a batch is not one transaction to its callers,
    only one trip. Two operations on one name never interleave.
    """

    namespace: str
    #: What `hf.hub` listens to when nothing else was asked for: "local" or "redis".
    default_hub: str

    def submit(self, op: Op[T]) -> Awaitable[T]:
        """From the event loop: all operations of one loop turn travel together."""
        ...

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """From a thread: one trip for all of them. Answers results or exceptions, in order; raises neither.
        `timeout` shortens the engine's own.
        """
        ...

    def key(self, room: str, name: str) -> str:
        """Where a record lives, in the engine's own terms: for people who look there."""
        ...

    def now(self) -> Micros:
        """The engine's clock as this process estimates it. For deadlines; never for decisions."""
        ...

    def correct(self, now: Micros) -> None:
        """The engine said what time it is: correct the estimate."""
        ...

    async def open(self) -> None:
        """Reach the engine and check that it can be used."""
        ...

    async def close(self) -> None:
        """Let go of everything. Safe twice."""
        ...

    def close_blocking(self) -> None:
        """The same from a thread."""
        ...

    def after_fork(self) -> None:
        """In a forked child: drop what was inherited, without goodbyes."""
        ...
