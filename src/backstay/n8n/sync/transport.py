"""One HTTP request with the standard library. Redirects are not followed, because they could send the API key to
another host.
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

#: The largest response that is read, in bytes.
LARGEST = 100_000_000


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response. `headers` are keyed by lower-case name."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class NotSent(Exception):
    """The connection was never made, so the request had no effect."""


class Transport(Protocol):
    """Sends one HTTP request."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> HttpResponse:
        """Send the request and return the response. Raise NotSent when it certainly did not arrive, OSError when it may
        have arrived.
        """
        ...


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Return a redirect as an ordinary response."""


_OPENER = urllib.request.build_opener(_NoRedirect)
#: The errors of a connection that was never made.
_UNREACHED = (ConnectionRefusedError, socket.gaierror, ssl.SSLError)


def urlopen(method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float) -> HttpResponse:
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)  # noqa: S310 - http(s) only
    try:
        with _OPENER.open(request, timeout=timeout) as found:
            return HttpResponse(found.status, found.read(LARGEST), _lower(found.headers))
    except urllib.error.HTTPError as error:
        with error:
            return HttpResponse(error.code, error.read(LARGEST), _lower(error.headers))
    except urllib.error.URLError as error:
        why = error.reason
        if isinstance(why, _UNREACHED) or _unroutable(why):
            raise NotSent(str(why)) from None
        raise OSError(str(why)) from None
    except http.client.HTTPException as error:
        raise OSError(f"the connection was closed or the server does not speak HTTP ({type(error).__name__})") from None


def _unroutable(why: object) -> bool:
    return isinstance(why, OSError) and why.errno in (101, 113)  # ENETUNREACH, EHOSTUNREACH


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
