"""The Redis protocol without I/O: packing, the sign-in, and what a server's refusal means.

Both transports (`async_link.py`, `blocking_link.py`) and the subscriber stand on this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

import hiredis

from backstay.engine.redis.address import Address
from backstay.engine.redis.link.credentials import Credentials
from backstay.errors import CorruptRecord, EngineError, EngineRefused, EngineUnavailable

#: The oldest servers that have everything the scripts use.
OLDEST = {"redis": (6, 2), "valkey": (7, 2)}

#: The server is alive but cannot serve now; nothing was done, so trying again is safe.
NOT_NOW = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS"}
#: After these the connection itself is of no more use: the next one may reach another server.
STALE = {"READONLY", "MASTERDOWN"}


#: The first word of what a subscription connection is sent unasked.
PUSHES = (b"message", b"subscribe", b"unsubscribe")


class Refusal(Exception):
    """An error reply as hiredis hands it over."""

    @property
    def code(self) -> str:
        return str(self).split(" ", 1)[0]


#: The stub says a tuple of one; any length is meant.
_pack_command = cast("Callable[[tuple[bytes | str | int, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


def new_reader() -> hiredis.Reader:
    return hiredis.Reader(protocolError=hiredis.ProtocolError, replyError=Refusal)


def is_push(reply: Any) -> bool:
    """Whether a reply on a subscription connection answers no command (the same in RESP2 and RESP3)."""
    return issubclass(type(reply), list) and len(reply) > 1 and reply[0] in PUSHES


def pack(*args: bytes | str | int) -> bytes:
    """A command as RESP bytes."""
    return _pack_command(args)


#: Sent before a command that hands over. A server writes its answers in the reverse order of who got the first one:
#: with this, those whom the command wakes are written to before its sender. Saves them 0.07 ms.
AFTER_YOU = pack("PING")
#: Lets a Cluster node that takes a slot over answer the command that follows.
ASKING = pack("ASKING")


@dataclass(frozen=True, slots=True)
class Hello:
    """What the sign-in told: who answers, and its clock in µs."""

    server: str
    version: tuple[int, ...]
    now: int
    #: Whether messages may come on a connection that sends commands.
    resp3: bool = False


#: Yields batches of commands and is sent their replies, or asks for credentials; returns what it came to or raises.
SignIn = Generator[list[bytes] | Credentials, Any, Any]


def auth_of(address: Address) -> Generator[Credentials, tuple[str, str], tuple[str, ...]]:
    """AUTH with its arguments; nothing where nobody signs in."""
    username, password = address.username, address.password
    if address.credentials is not None:
        username, password = yield address.credentials
    return ("AUTH", username or "default", password) if username or password else ()


def sign_in(address: Address, client_name: str) -> Generator[list[bytes] | Credentials, Any, Hello]:
    """What opens every connection that is to carry commands."""
    auth = yield from auth_of(address)
    first = [pack("HELLO", "3", *auth, "SETNAME", client_name)]
    (hello,) = yield first
    if isinstance(hello, Refusal) and hello.code in ("ERR", "NOPROTO", "NOPERM"):
        # No RESP3 here, or HELLO is forbidden to this user: sign in the old way.
        old = [pack("AUTH", *auth[1:])] if auth else []
        replies = yield [*old, pack("CLIENT", "SETNAME", client_name), pack("INFO", "server")]
        for reply in replies[: len(old)]:
            if isinstance(reply, Refusal):
                raise refused(reply, address)
        hello = _from_info(replies[-1])
    if isinstance(hello, Refusal):
        raise refused(hello, address)
    fields = _fields(hello)
    if fields is None:
        raise EngineRefused(f"{address} does not answer as Redis does")
    rest = [pack("SELECT", address.db)] if address.db else []
    replies = yield [*rest, pack("TIME")]
    for reply in replies:
        if isinstance(reply, Refusal):
            raise refused(reply, address)
    server, version = fields.get("server", "redis"), _version(fields.get("version", ""))
    oldest = OLDEST.get(server, OLDEST["redis"])
    if version and version < oldest:
        raise EngineRefused(
            f"{address} is {server} {fields['version']}; Backstay needs {server} {oldest[0]}.{oldest[1]} or newer"
        )
    match replies[-1]:
        case [bytes() as seconds, bytes() as micros] if seconds.isdigit() and micros.isdigit():
            return Hello(server, version, int(seconds) * 1_000_000 + int(micros), fields.get("proto") == "3")
        case _:
            raise EngineRefused(f"{address} does not answer as Redis does")


def _fields(hello: Any) -> dict[str, str] | None:
    match hello:
        case {**items}:
            return {_text(k): _text(v) for k, v in items.items()}
        case _:
            return None


def _from_info(reply: Any) -> dict[str, str]:
    if isinstance(reply, Refusal):
        return {}
    found = dict(re.findall(r"^(redis|valkey)_version:(\S+)", _text(reply), re.MULTILINE))
    server = "valkey" if "valkey" in found else "redis"
    return {"server": server, "version": found.get(server, "")}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


def _stumbled(text: str) -> bool:
    """Whether a script itself failed, not a command it called: only damaged data can make it."""
    own = re.search(r"user_script:\d+: ", text) is not None
    return own and not any(word in text for word in ("OOM", "MISCONF", "NOPERM", "The user executing"))


def refused(refusal: Refusal, address: Address) -> EngineError:
    """What a server's error reply means for the caller. Never repeats a secret."""
    code, text = refusal.code, str(refusal)
    if code == "READONLY":
        return EngineUnavailable(f"{address} is a read-only replica; point the URL at its master")
    if code in NOT_NOW:
        return EngineUnavailable(f"{address} cannot serve now: {text}")
    if code in ("WRONGPASS", "NOAUTH") or "invalid username-password" in text or "Client sent AUTH" in text:
        return EngineRefused(f"{address} refused the username or password")
    if code in ("MOVED", "ASK"):
        return EngineRefused(f"{address} is a Cluster node; use redis+cluster:// ({text})")
    if code in ("CORRUPT", "WRONGTYPE") or _stumbled(text):
        return CorruptRecord(f"{address} holds a record that cannot be read: {text}")
    return EngineRefused(f"{address} refused: {text}")


def why_not(error: BaseException, address: Address) -> str:
    """Why a server could not be reached, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time" + (" (does it speak TLS?)" if address.tls else "")
    return str(error) or type(error).__name__
