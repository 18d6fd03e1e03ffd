"""CORS: which origins may read responses in a browser. None by default."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.http.asgi import Header, Scope

METHODS = b"GET, POST, DELETE"
FIELDS = b"authorization, content-type, last-event-id"
#: Seconds for which a browser may cache a preflight response.
MAX_AGE = b"600"


class Cors:
    """Answers preflight requests and adds CORS headers to responses. An origin is allowed if it equals one of
    `origins`, such as https://ops.example.org.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        for origin in origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:  # noqa: PLR2004 - scheme://host
                raise ConfigError(f"a CORS origin is scheme and host, as in https://ops.example.org; got {origin!r}")
        self.origins = {origin.encode() for origin in origins}

    def _origin(self, scope: Scope) -> bytes | None:
        if not self.origins:
            return None
        return next((value for name, value in scope["headers"] if name == b"origin" and value in self.origins), None)

    def is_preflight(self, scope: Scope) -> bool:
        """Whether this is a CORS preflight from an allowed origin."""
        if not self.origins or scope["method"] != "OPTIONS" or self._origin(scope) is None:
            return False
        return any(name == b"access-control-request-method" for name, _ in scope["headers"])

    def headers(self, scope: Scope) -> tuple[Header, ...]:
        origin = self._origin(scope)
        if origin is None:
            return ()
        fields: tuple[Header, ...] = ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
        if scope["method"] != "OPTIONS":
            return fields
        return (
            *fields,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", FIELDS),
            (b"access-control-max-age", MAX_AGE),
        )
