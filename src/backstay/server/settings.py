"""Settings of the HTTP server: sizes, timeouts, rates, tokens, CORS."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from backstay.errors import ConfigError

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and options of one server. Durations are seconds."""

    #: The largest JSON body, in bytes.
    max_body: int = MEGABYTE
    #: The largest batch of log chunks, in bytes.
    max_log_batch: int = 8 * MEGABYTE
    #: The largest artifact, in bytes.
    max_artifact: int = 64 * MEGABYTE
    #: The largest total size of a request's headers, in bytes.
    max_headers: int = 32 * 1024
    #: The longest time to receive the head of a request (request line and headers).
    head_timeout: float = 10.0
    #: The longest time to receive the body of a request. A body that is read chunk by chunk (an artifact, a definition)
    #: has one more second for each `min_body_rate` bytes.
    body_timeout: float = 30.0
    min_body_rate: int = 16 * 1024
    #: The longest time that one write to the client of an event stream may take.
    stream_timeout: float = 20.0
    #: The server closes a connection that has been idle for this long.
    keep_alive: float = 75.0
    #: The interval of keep-alive comments in an idle event stream.
    stream_keepalive: float = 15.0
    #: The largest number of open streams and long polls; the server refuses more with 503.
    max_waiting: int = 2000
    #: The longest lease of a job, and the longest time to live of a lock or a call, that a token without the role admin
    #: may ask for.
    max_lease: float = 3600.0
    max_ttl: float = 7 * 86400.0
    #: The largest number of waiting jobs in a queue, above which tokens without the role admin can add none; 0: no
    #: limit. All queues together may have ten times as many.
    max_queue: int = 100_000
    #: The largest log of a job, in characters. The rest is not stored, and the log says so.
    max_job_log: int = 64 * MEGABYTE
    #: The largest number of artifacts of a job, and their bytes together.
    max_artifacts: int = 1000
    max_artifact_bytes: int = 1024 * MEGABYTE
    #: The request rate of one caller (a token or, without tokens, an address) per server process; "": unlimited.
    rate: str = "5000/second"
    #: The rate of requests with a wrong token from one address; further such requests get 429.
    auth_failure_rate: str = "30/minute"
    #: Refuse requests without a token even while no token exists.
    require_tokens: bool = False
    #: Host headers that a server without tokens accepts, besides loopback names.
    hosts: tuple[str, ...] = ()
    #: Addresses and networks of reverse proxies. Their X-Forwarded-For names the client's address. A server without
    #: tokens refuses forwarded requests while this is empty: every client of the proxy would have full access.
    trusted_proxies: tuple[str, ...] = ()
    #: How long a request waits for an unavailable engine.
    engine_timeout: float = 10.0
    #: How long a stopping server waits for open requests.
    stop_timeout: float = 10.0
    #: The directory of artifact files; "": artifacts are stored in the engine. Workers need the same setting.
    artifacts: str = ""
    #: Log one line per request.
    access_log: bool = True
    #: Origins whose pages may read responses (CORS).
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
    """Raise ConfigError if a server without tokens would listen beyond loopback: any host could run jobs on it."""
    if is_loopback(host) or tokens or required:
        return
    raise ConfigError(
        f"--host {host} can be reached from other machines, and there is no token: any of them could run jobs here."
        " Create one with `backstay token create --role admin`, or listen on 127.0.0.1 only"
    )
