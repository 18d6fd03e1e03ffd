"""What may be said about a server."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from backstay.errors import ConfigError

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds of one server. Durations are seconds."""

    #: JSON bodies, batches of log chunks, and artifacts, in bytes.
    max_body: int = MEGABYTE
    max_log_batch: int = 8 * MEGABYTE
    max_artifact: int = 64 * MEGABYTE
    #: All headers of a request together, in bytes.
    max_headers: int = 32 * 1024
    #: Until a request's head, and its body, must have come; and how long a reader of a stream may stand still.
    head_patience: float = 10.0
    body_patience: float = 30.0
    stream_patience: float = 20.0
    #: A connection without a request is closed after this.
    keep_alive: float = 75.0
    #: How often a silent stream says that it is alive.
    stream_beat: float = 15.0
    #: Streams and long polls at once.
    max_waiting: int = 2000
    #: Requests of one caller, by token or address, for each server process; "": any number.
    rate: str = "5000/second"
    #: Wrong tokens from one address, before they are not even looked at.
    guesses: str = "30/minute"
    #: Whether requests without a token are refused although there is no token yet.
    require_tokens: bool = False
    #: Hosts that a request may name while no token is needed, beside loopback's own names.
    hosts: tuple[str, ...] = ()
    #: How long a request may wait for an engine that is away, and how long a stop waits for requests.
    engine_patience: float = 10.0
    stop_patience: float = 10.0
    #: Where the bytes of artifacts lie; "": in the engine. As workers have it.
    artifacts: str = ""
    #: A line for each request.
    access_log: bool = True
    #: Origins whose pages may read answers; none by default.
    cors: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name that is not `localhost` is taken for reachable."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_open_door(host: str, *, tokens: int, required: bool) -> None:
    """Another address than loopback needs tokens: without one, anybody could run anything."""
    if is_loopback(host) or tokens or required:
        return
    raise ConfigError(
        f"--host {host} can be reached from other machines, and there is no token: anybody could run jobs here. Make"
        " one with `backstay token create --role admin`, or listen on 127.0.0.1 only"
    )
