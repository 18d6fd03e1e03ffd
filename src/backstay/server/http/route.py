"""A route: method, path, roles and handler. Its body, query and reply types are the handler's annotations, so routing,
validation, OpenAPI and the reference pages all derive from one table entry.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

Role = Literal["submit", "worker", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

#: The sets of roles that a route can allow. Each contains `admin`, so an admin may use every route.
ADMIN: frozenset[Role] = frozenset({"admin"})
SUBMIT: frozenset[Role] = frozenset({"submit", "admin"})
WORKER: frozenset[Role] = frozenset({"worker", "admin"})
ANYONE: frozenset[Role] = frozenset(ROLES)
#: The set for routes that need no token.
OPEN: frozenset[Role] = frozenset()

Handler = Callable[..., Awaitable[Any]]


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base class of query parameters. An unknown parameter is refused."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base class of request bodies. An unknown field is refused, so that a misspelt option is not silently ignored."""


class Reply(msgspec.Struct, kw_only=True):
    """Base class of response bodies."""


@dataclass(frozen=True, eq=False)
class Route:
    """One entry of the route table. `errors` describes, by status, the error responses that only this route has."""

    method: str
    path: str
    handler: Handler
    roles: frozenset[Role]
    tag: str
    status: int = 200
    errors: dict[int, str] = field(default_factory=dict[int, str])
    #: The largest body in bytes, above which the server responds 413; 0: the server's default limit.
    max_body: int = 0
    #: Descriptions of further statuses that are not errors, as 202 for a lock that is not free yet.
    other_statuses: dict[int, str] = field(default_factory=dict[int, str])
    #: Media types of request and response. With another type than JSON, the handler reads the body chunk by chunk.
    consumes: str = "application/json"
    produces: str = "application/json"

    @property
    def name(self) -> str:
        return self.handler.__name__

    @cached_property
    def hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.handler, include_extras=True)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path parameters, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @cached_property
    def query(self) -> type[Query] | None:
        return self.hints.get("query")

    @cached_property
    def body(self) -> Any:
        """The type of the request body. None: the route takes no body and ignores one that a client sends."""
        return self.hints.get("body")

    @cached_property
    def decode(self) -> Callable[[bytes], Any]:
        """A function that decodes a JSON body to the type `body`."""
        return msgspec.json.Decoder(self.body).decode

    @cached_property
    def body_required(self) -> bool:
        """Whether an empty body is refused: false where every field has a default."""
        kind = self.body
        if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
            return kind is not None
        return any(f.required for f in msgspec.structs.fields(kind))

    @cached_property
    def reply(self) -> Any:
        """The type of the response body. None: the response has no body."""
        hint = self.hints.get("return")
        return None if hint is type(None) else hint

    @cached_property
    def streams(self) -> bool:
        """Whether the handler may return server-sent events."""
        return "EventStream" in str(self.handler.__annotations__.get("return", ""))

    @cached_property
    def text(self) -> str:
        """The handler's docstring, which is the route's documentation."""
        return inspect.cleandoc(self.handler.__doc__ or "")

    @cached_property
    def summary(self) -> str:
        return " ".join(self.text.partition("\n\n")[0].split()).rstrip(".")
