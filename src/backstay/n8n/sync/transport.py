"""One HTTP request and its answer, with nothing but Python's own library. Redirects are not followed: they would carry
the API key to wherever they point.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

#: An answer above this is no workflow.
LARGEST = 100_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` by lower-case name."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class NotSent(Exception):
    """Nobody was reached, so nothing happened."""


class Transport(Protocol):
    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float) -> Answer:
        """Raises NotSent when nothing can have arrived, OSError when something may have."""
        ...


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """A redirect is an answer like any other."""


_OPENER = urllib.request.build_opener(_Stay)
#: What a connection that was never made fails with.
_UNREACHED = (ConnectionRefusedError, socket.gaierror, ssl.SSLError)


def urlopen(method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float) -> Answer:
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)  # noqa: S310 - http(s) only
    try:
        with _OPENER.open(request, timeout=timeout) as found:
            return Answer(found.status, found.read(LARGEST), _lower(found.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(LARGEST), _lower(error.headers))
    except urllib.error.URLError as error:
        why = error.reason
        if isinstance(why, _UNREACHED) or _unroutable(why):
            raise NotSent(str(why)) from None
        raise OSError(str(why)) from None
    except http.client.HTTPException as error:
        raise OSError(f"it hung up or does not speak HTTP ({type(error).__name__})") from None


def _unroutable(why: object) -> bool:
    return isinstance(why, OSError) and why.errno in (101, 113)  # ENETUNREACH, EHOSTUNREACH


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
