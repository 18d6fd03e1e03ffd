"""The engine contract: an engine stores state and runs operations, each atomically, on its own clock.

An operation (`Op`) is data, so the event loop, the blocking API and the keeper's thread all use the same interface.
A room is one primitive with its package: gate, limit, idempotency, job, workflow.
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

#: Microseconds since the epoch by the engine's clock. Below 2**53, so a Lua number holds it exactly.
Micros = int

#: The monotonic clock (seconds). It stops while the host sleeps; the first renewal after that finds the lease lost.
steady = time.monotonic


class Wake(NamedTuple):
    """A hint for one process: `payload` goes to the channel `inbox`. It may be lost; no decision relies on it."""

    inbox: str
    payload: str


class Transition(NamedTuple, Generic[S]):
    """The result of a machine: the next state, the reply, the waiters to wake, and how long to keep the record."""

    state: S | None
    reply: Any
    wakes: tuple[Wake, ...] = ()
    keep_until: Micros = 0
    #: False: nothing changed, so the engine writes nothing.
    write: bool = True
    #: The new body to store beside the record, for rooms with `has_bodies`; None leaves the stored one in place.
    body: bytes | None = None
    #: The engine fills the reply's `body` with the body that is stored beside the record.
    includes_body: bool = False


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine states. `version` grows when the stored format changes."""

    version: int


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of all machine commands. After `not_after` (engine time) a command has no effect: a request that was delayed
    on an abandoned connection must not act after its caller has given up.
    """

    not_after: Micros

    #: The command may free something that waiters want: they are notified before its sender gets the reply.
    wakes_waiters: ClassVar[bool] = False


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="expired"):
    """The command arrived after its `not_after` without effect. `now` corrects the client's estimate of engine time."""

    now: Micros


#: The exceptions that msgspec raises for malformed bytes.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError)


class Room(Generic[S]):
    """A machine with all an engine needs to run it: `step` for the SQL engines, one Lua file per command for Redis."""

    def __init__(
        self,
        name: str,
        *,
        step: Callable[[S | None, Any, Micros], Transition[S]],
        state: type[S],
        version: int,
        replies: Any,
        package: str,
        has_bodies: bool = False,
        build_keys: Callable[[str, str], tuple[str, ...]] | None = None,
        keys: int = 1,
    ) -> None:
        self.name = name
        #: Builds the `keys` Redis keys of a name from namespace and name, for key formats that other programs define.
        self.build_keys = build_keys
        self.keys = 2 if has_bodies else keys
        #: Whether a record may have a body: a large value that is stored beside it and that the machine never reads.
        self.has_bodies = has_bodies
        self.version = version
        self.step = step
        self.package = package
        self._state = msgspec.msgpack.Decoder(state)
        self.decode_reply: Callable[[bytes], Any] = msgspec.msgpack.Decoder(replies).decode
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode

    def decode_state(self, name: str, raw: bytes) -> S:
        try:
            state = self._state.decode(raw)
        except (*DECODE_ERRORS, TypeError) as error:  # SQLite stores any type in any column
            raise self.corrupt_record(name, error) from error
        if state.version != self.version:
            raise CorruptRecord(
                f"the {self.name} record {name!r} is of version {state.version}, this process reads {self.version}"
            )
        return state

    def corrupt_record(self, name: str, error: Exception) -> CorruptRecord:
        """Build the error for a record, or a reply with parts of it, that cannot be decoded."""
        return CorruptRecord(f"the {self.name} record {name!r} cannot be read: {error}")

    def encode_command(self, command: Command) -> bytes:
        """Encode a command for a script. Lua's msgpack has no byte strings, so a body is sent as a string (str32)."""
        body = getattr(command, "body", None)
        if body is not None:
            command = msgspec.structs.replace(command, body=msgspec.Raw(b"\xdb" + len(body).to_bytes(4) + body))
        return self.encode(command)

    def complete_reply(self, name: str, transition: Transition[S], body: bytes | None) -> Any:
        """Return a transition's reply, with the stored `body` filled in if the transition asks for it."""
        if not transition.includes_body:
            return transition.reply
        if body is None:
            raise CorruptRecord(f"the {self.name} record {name!r} has lost its body")
        return msgspec.structs.replace(transition.reply, body=body)

    def script(self, command: type[Command]) -> str:
        """Return the Lua source of a command: the file named after it, with its includes expanded."""
        file = "".join("_" + c.lower() if c.isupper() else c for c in command.__name__).lstrip("_")
        return self._lua(f"{file}.lua")

    def _lua(self, file: str) -> str:
        for package in (self.package, "backstay.engine.redis"):
            found = files(package).joinpath("lua", file)
            if found.is_file():
                return re.sub(r"(?m)^-- include: (\S+)$", lambda m: self._lua(m[1]), found.read_text())
        raise FileNotFoundError(f"{self.package} has no {file}")


class Op(msgspec.Struct, Generic[T_co], frozen=True):
    """One operation; the type parameter is the type of its result."""


class Apply(Op[Any], frozen=True, gc=False):
    """Run one machine command, atomically on its name."""

    room: Room[Any]
    name: str
    command: Command
    #: The encoded request, if `Engine.prepare` has built it.
    encoded: bytes = b""


class Reading(msgspec.Struct, Generic[S], frozen=True):
    """A stored state, and the engine's clock when it was read."""

    now: Micros
    state: S | None


class Read(Op[Reading[Any]], frozen=True):
    """Read the state of one name without changing it."""

    room: Room[Any]
    name: str


class ReadBody(Op[bytes | None], frozen=True, gc=False):
    """Read the body beside a record without reading the record. Only valid where `Engine.expires_bodies`."""

    room: Room[Any]
    name: str


class Scan(Op[list[str]], frozen=True):
    """List the names of a room that start with `prefix`, sorted. It walks all names: for admin tools only."""

    room: Room[Any]
    prefix: str = ""


class Tag(Op[None], frozen=True):
    """Index `name` under `tag` for `ttl` µs. The index may hold stale names; it never misses a live one."""

    room: Room[Any]
    tag: str
    name: str
    ttl: Micros


class Tagged(Op[list[str]], frozen=True):
    """List the names indexed under `tag`, sorted."""

    room: Room[Any]
    tag: str


class Untag(Op[None], frozen=True):
    """Remove names from the index under `tag`."""

    room: Room[Any]
    tag: str
    names: tuple[str, ...]


class Publish(Op[None], frozen=True):
    """Publish a hint on a channel, at most once: it is not sent again and delivery is not confirmed."""

    channel: str
    payload: str


class PublishHint(Op[None], frozen=True):
    """Create the counter `hint` with the value `count` and a TTL of `life` µs, and publish `payload` on `channel`,
    atomically: a subscriber that receives the message finds the counter. Not idempotent: it is not sent again once it
    may have been sent.
    """

    hint: str
    count: int
    life: Micros
    channel: str
    payload: str


class TakeHint(Op[int], frozen=True):
    """Take up to `n` from the counter `hint`, atomically, and return how many were taken. An exhausted counter returns
    0 until its TTL ends; a missing or expired one returns `n`. Never creates a counter, never extends its TTL.
    """

    hint: str
    n: int
    #: The TTL for a counter that was created without one.
    life: Micros


class StoreOperation(Op[T_co], frozen=True):
    """An operation of a store with its own tables or keys: the engine runs `work` inside its transaction. Each engine
    documents the arguments it passes. `work` raises before its first write or not at all: other operations share the
    transaction.
    """

    work: Callable[..., Any]
    #: Selects the node on a cluster: all keys that `work` touches share the slot of this key.
    key: str = ""
    #: Whether the operation is read-only.
    reads: bool = False


class Ping(Op[Micros], frozen=True):
    """Reach the engine and return its clock."""


class ThreadSubscriber(Protocol):
    """A thread's own subscription to its inbox, and the latch on which the thread waits."""

    def listen(self, channel: str, on_hint: Callable[[str | None], None]) -> bool:
        """Subscribe to a channel. Returns True if the subscription is new, so earlier messages may have been missed."""
        ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None) -> bool: ...


class ThreadSubscribers(Protocol):
    """The subscribers of an engine, one per thread."""

    def for_this_thread(self) -> ThreadSubscriber: ...

    def channel(self, inbox: str) -> str:
        """Return this thread's own channel, derived from the inbox of the process."""
        ...


class ReplicaAcks(Protocol):
    """Counts the replicas that have acknowledged a command. Blocks the calling thread."""

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        """Run an idempotent command on a separate connection; return its reply and how many replicas acknowledged it
        within `within` seconds.
        """
        ...


def single_result(results: list[Any]) -> Any:
    """Return the result of a batch of one operation, or raise its exception."""
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


class OperationRunner(Protocol):
    """Runs operations from the event loop and from threads. A hub needs no more than this: see `backstay.hub.base`."""

    def submit(self, op: Op[T]) -> Awaitable[T]:
        """Run one operation from the event loop. All operations of one loop iteration travel as one batch."""
        ...

    def apply(self, op: Op[T]) -> T:
        """Run one operation from a thread."""
        ...

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """Run operations from a thread in one round trip. Returns results or exceptions, in order; raises none.
        `timeout` can only shorten the engine's own.
        """
        ...

    async def close(self) -> None:
        """Close all connections and threads. Safe to call twice."""
        ...

    def close_blocking(self) -> None:
        """Do the same as `close` from a thread."""
        ...

    def after_fork(self) -> None:
        """In a forked child: drop inherited connections without closing them on the server."""
        ...


@runtime_checkable
class WakesAfterCommit(Protocol):
    """An engine that passes its wakes to a callback after each commit, so any hub can deliver them. The Redis engine
    does not: its scripts publish wakes themselves, so it always uses the Redis hub.
    """

    def attach(
        self,
        inbox: str,
        deliver: Callable[[Sequence[Wake]], None],
        forward: Callable[[Sequence[Wake]], None] | None = None,
    ) -> None:
        """Call `deliver` with all wakes after each commit, for the waiters of this process under `inbox`. If `forward`
        is given, the engine also passes it the wakes for other processes and does not send them itself. Neither
        callback may block.
        """
        ...

    def detach(self, inbox: str) -> None: ...


class Engine(OperationRunner, Protocol):
    """Runs operations on its own clock. Each operation is atomic; a batch is one round trip, not one transaction.
    Two operations on one name never interleave.
    """

    namespace: str
    #: Whether bodies are deleted when they expire, so that a `ReadBody` never returns an outdated one.
    expires_bodies: bool
    #: Whether other programs reach its records with Redis commands, as wire="n8n" requires.
    exposes_redis_keys: bool
    #: Whether keys are spread over several nodes by their hash tags.
    is_clustered: bool

    def prepare(self, op: Apply) -> Apply:
        """Encode an operation ahead of time: a caller that waits before it sends has time for that."""
        ...

    def key(self, room: str, name: str) -> str:
        """Return the key or table row of a record as text, for people who look into the store."""
        ...

    def now(self) -> Micros:
        """Return this process's estimate of the engine's clock. Use it for deadlines, never for decisions."""
        ...

    def correct_clock(self, now: Micros) -> None:
        """Correct the estimate of the engine's clock: the engine has just reported `now`."""
        ...

    def thread_subscribers(self) -> ThreadSubscribers | None:
        """Return the subscribers that let a thread wait for hints on its own connection; None: the hub's thread wakes
        waiting threads.
        """
        ...

    def replica_acks(self) -> ReplicaAcks | None:
        """Return the object that counts replica acknowledgements; None: this engine has no replicas to ask."""
        ...

    async def open(self) -> None:
        """Reach the engine and check that it can be used."""
        ...
