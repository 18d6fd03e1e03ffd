"""Settings of the HTTP server: sizes, timeouts, rates, tokens, CORS."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from backstay.errors import ConfigError

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and options of one server. Durations are seconds."""

    #: The largest JSON body, batch of log chunks and artifact, in bytes.
    max_body: int = MEGABYTE
    max_log_batch: int = 8 * MEGABYTE
    max_artifact: int = 64 * MEGABYTE
    #: The headers of a request together, in bytes.
    max_headers: int = 32 * 1024
    #: For the head of a request, for its body, and for one write to a client that reads a stream.
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    stream_timeout: float = 20.0
    #: An idle connection is closed after this.
    keep_alive: float = 75.0
    #: The interval of keep-alive comments in an idle event stream.
    stream_keepalive: float = 15.0
    #: Open streams and long polls.
    max_waiting: int = 2000
    #: Requests of one caller, by token or address, per server process; "": unlimited.
    rate: str = "5000/second"
    #: Wrong tokens from one address; above it, requests with a wrong token get 429.
    auth_failure_rate: str = "30/minute"
    #: Refuse requests without a token even while no token exists.
    require_tokens: bool = False
    #: Host headers that are accepted without tokens, beside loopback names.
    hosts: tuple[str, ...] = ()
    #: How long a request waits for an unavailable engine, and how long a stop waits for open requests.
    engine_timeout: float = 10.0
    stop_timeout: float = 10.0
    #: The directory of artifact files; "": in the engine. Workers need the same setting.
    artifacts: str = ""
    #: Log one line per request.
    access_log: bool = True
    #: Origins whose pages may read responses.
    cors: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. Any name but `localhost` counts as reachable from outside."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_tokens_beyond_loopback(host: str, *, tokens: int, required: bool) -> None:
    """Raise ConfigError for an address beyond loopback without tokens: any host could run jobs there."""
    if is_loopback(host) or tokens or required:
        return
    raise ConfigError(
        f"--host {host} can be reached from other machines, and there is no token: any of them could run jobs here."
        " Create one with `backstay token create --role admin`, or listen on 127.0.0.1 only"
    )
