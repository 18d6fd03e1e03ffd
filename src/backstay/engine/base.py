"""The engine contract: what remembers. Rooms hand over operations; an engine carries each out atomically.

An operation is data, so that the event loop, the blocking API and the keeper thread all use one door.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from backstay.errors import CorruptRecord

S = TypeVar("S", bound="Record")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Microseconds since the epoch by the engine's clock. Below 2**53, so Lua holds it exactly.
Micros = int


#: Seconds of a clock that is never set. A machine that sleeps stops it; its first renewal then finds the lease lost.
steady = time.monotonic


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
    #: What is kept beside the record from now on, for rooms with `bodies`; None: whatever is there stays.
    body: bytes | None = None
    #: The reply quotes what is kept beside the record: its `body` is filled in.
    quotes: bool = False


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine states. `version` is bumped when the stored shape changes."""

    version: int


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine commands. Past `not_after` (engine time) a command has no effect: a request
    delayed on an abandoned connection must not act for nobody.
    """

    not_after: Micros

    #: Whether it frees something that others wait for: then they are told before its sender is answered.
    hands_over: ClassVar[bool] = False


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """The command came too late and did nothing. `now` lets the client correct its idea of engine time."""

    now: Micros


#: What msgspec raises where bytes are not what they ought to be.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


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
        bodies: bool = False,
        places: Callable[[str, str], tuple[str, ...]] | None = None,
        keys: int = 1,
    ) -> None:
        self.name = name
        #: Where a name lives when that is for others to say: its `keys` keys, by namespace and name. Redis only.
        self.places = places
        self.keys = 2 if bodies else keys
        #: Whether something may be kept beside a record: large, and no business of the machine's.
        self.bodies = bodies
        self.version = version
        self.step = step
        self.package = package
        self._state = msgspec.msgpack.Decoder(state)
        self.decode_reply: Callable[[bytes], Any] = msgspec.msgpack.Decoder(replies).decode
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode

    def decode_state(self, name: str, raw: bytes) -> S:
        try:
            state = self._state.decode(raw)
        except (*UNREADABLE, TypeError) as error:  # SQLite puts any type into any column
            raise self.unreadable(name, error) from error
        if state.version != self.version:
            raise CorruptRecord(
                f"the {self.name} record {name!r} is of version {state.version}, this process reads {self.version}"
            )
        return state

    def unreadable(self, name: str, error: Exception) -> CorruptRecord:
        """A reply that quotes a damaged record."""
        return CorruptRecord(f"the {self.name} record {name!r} cannot be read: {error}")

    def wire(self, command: Command) -> bytes:
        """A command on its way to a script. Lua's msgpack knows no bytes, so a body travels as text of any bytes."""
        body = getattr(command, "body", None)
        if body is not None:
            command = msgspec.structs.replace(command, body=msgspec.Raw(b"\xdb" + len(body).to_bytes(4) + body))
        return self.encode(command)

    def quote(self, name: str, step: Step[S], body: bytes | None) -> Any:
        """A step's reply, with what is kept beside the record where it says so."""
        if not step.quotes:
            return step.reply
        if body is None:
            raise CorruptRecord(f"what was kept beside the {self.name} record {name!r} is gone")
        return msgspec.structs.replace(step.reply, body=body)

    def script(self, command: type[Command]) -> str:
        """The Lua source of a command: the file named after it, with what it includes."""
        file = "".join("_" + c.lower() if c.isupper() else c for c in command.__name__).lstrip("_")
        return self._lua(f"{file}.lua")

    def _lua(self, file: str) -> str:
        for package in (self.package, "backstay.engine.redis"):
            found = files(package).joinpath("lua", file)
            if found.is_file():
                return re.sub(r"(?m)^-- include: (\S+)$", lambda m: self._lua(m[1]), found.read_text())
        raise FileNotFoundError(f"{self.package} has no {file}")


class Op(msgspec.Struct, Generic[T_co], frozen=True):
    """One operation; the type parameter is what it answers."""


class Apply(Op[Any], frozen=True, gc=False):
    """Run one machine command, atomic on its name."""

    room: Room[Any]
    name: str
    command: Command
    #: What `Engine.prepare` has made of it.
    wire: bytes = b""


class Reading(msgspec.Struct, Generic[S], frozen=True):
    """A state as stored, and the engine's clock at that moment."""

    now: Micros
    state: S | None


class Read(Op[Reading[Any]], frozen=True):
    """Look at one name without changing it."""

    room: Room[Any]
    name: str


class Recall(Op[bytes | None], frozen=True, gc=False):
    """What is kept beside a record, as it lies there, without a look at the record. Only where `Engine.recalls`."""

    room: Room[Any]
    name: str


class Scan(Op[list[str]], frozen=True):
    """Names of a room that start with `prefix`, sorted. Walks all names: for people, not for programs."""

    room: Room[Any]
    prefix: str = ""


class Tag(Op[None], frozen=True):
    """Remember `name` under `tag` for `ttl` µs. An index that may hold too much, never too little."""

    room: Room[Any]
    tag: str
    name: str
    ttl: Micros


class Tagged(Op[list[str]], frozen=True):
    """The names remembered under `tag`, sorted."""

    room: Room[Any]
    tag: str


class Untag(Op[None], frozen=True):
    """Forget names under `tag`."""

    room: Room[Any]
    tag: str
    names: tuple[str, ...]


class Publish(Op[None], frozen=True):
    """Send a hint to a channel. Fire and forget."""

    channel: str
    payload: str


class PublishHint(Op[None], frozen=True):
    """Make the counter `hint` with `count` in it, to live for `life` µs, and publish `payload` on `channel`: in one
    step, so that whoever hears the message finds the counter. Counting: not sent again once it may have left.
    """

    hint: str
    count: int
    life: Micros
    channel: str
    payload: str


class TakeHint(Op[int], frozen=True):
    """Take up to `n` from the counter `hint`, atomically; answers how many. An exhausted counter answers 0 for the
    rest of its life; one that is not there (any more) answers `n`. Never makes a counter, never prolongs one.
    """

    hint: str
    n: int
    #: What a counter gets whose maker gave it no end.
    life: Micros


class Within(Op[T_co], frozen=True):
    """A verb of a room that keeps tables or keys of its own: `work` is carried out inside the engine's transaction,
    with what the engine has for it (each engine's `_within` says what). It raises before its first write or not at
    all: its neighbours in the group must not suffer.
    """

    work: Callable[..., Any]
    #: Decides where it happens on an engine of many nodes: all keys it touches share this one's slot.
    key: str = ""
    #: Only looks.
    reads: bool = False


class Ping(Op[Micros], frozen=True):
    """Reach the engine; answers its clock."""


class Ear(Protocol):
    """A thread's own ear: a latch that also hears the thread's inbox."""

    def listen(self, channel: str, on_hint: Callable[[str | None], None]) -> bool:
        """Hear a channel. True when that is new, so something may have passed unheard."""
        ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None) -> bool: ...


class Ears(Protocol):
    """The ears of an engine's threads."""

    def of_this_thread(self) -> Ear: ...

    def channel(self, inbox: str) -> str:
        """This thread's own channel below the process's inbox."""
        ...


class Witness(Protocol):
    """Tells how many replicas have a command. Blocks its thread."""

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        """Carry out a natural command on a link of its own; its reply, and how many replicas have it by then."""
        ...


def only(answers: list[Any]) -> Any:
    """The one answer of a batch of one."""
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Carrier(Protocol):
    """The doors through which operations go. A hub's own need no more than this: see `backstay.hub.base`."""

    def submit(self, op: Op[T]) -> Awaitable[T]:
        """From the event loop: all operations of one loop turn travel together."""
        ...

    def apply(self, op: Op[T]) -> T:
        """From a thread: one operation."""
        ...

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """From a thread: one trip for all of them. Answers results or exceptions, in order; raises neither.
        `timeout` shortens the engine's own.
        """
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


@runtime_checkable
class WakesAfterCommit(Protocol):
    """An engine that hands its wakes over after each commit, so that any hub may carry them. One that sends them by
    itself (Redis, from inside its scripts) has a hub of its own and no choice.
    """

    def attach(
        self,
        inbox: str,
        deliver: Callable[[Sequence[Wake]], None],
        carry: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """`deliver` gets all wakes after each commit, for those who wait in this process under `inbox`. `carry`, if
        given, gets those for other processes, and the engine leaves them to it. Neither may block.
        """
        ...

    def detach(self, inbox: str) -> None: ...


class Engine(Carrier, Protocol):
    """Carries out operations on its own clock. Each is atomic; a batch is not one transaction to its callers,
    only one trip. Two operations on one name never interleave.
    """

    namespace: str
    #: What `stay.hub` listens to when nothing else was asked for: "local" or "redis".
    default_hub: str
    #: Whether what is kept beside a record goes by itself when its time is over, so that a `Recall` may be believed.
    recalls: bool

    def prepare(self, op: Apply) -> Apply:
        """Do now what need not wait until it is sent: a caller that sleeps first has the time."""
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

    def thread_ears(self) -> Ears | None:
        """Where a thread can wait for hints on its own connection; None: the hub's thread wakes it."""
        ...

    def witness(self) -> Witness | None:
        """Who can say how many replicas have a command; None: there is nobody to ask."""
        ...

    async def open(self) -> None:
        """Reach the engine and check that it can be used."""
        ...
