"""A route: a path, a method, who may use it, and the function that answers. Its types are the function's annotations,
so that routing, checking, OpenAPI and the reference are made from one line.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

Role = Literal["submit", "worker", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

#: Who may use a route. An admin may use all of them.
ADMIN: frozenset[Role] = frozenset({"admin"})
SUBMIT: frozenset[Role] = frozenset({"submit", "admin"})
WORKER: frozenset[Role] = frozenset({"worker", "admin"})
ANYONE: frozenset[Role] = frozenset(ROLES)
#: No token needed, ever.
OPEN: frozenset[Role] = frozenset()

Handler = Callable[..., Awaitable[Any]]


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What may stand behind the question mark of a route."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request's body. A field that nobody knows is a mistake, and said so."""


class Reply(msgspec.Struct, kw_only=True):
    """An answer's body."""


@dataclass(frozen=True, eq=False)
class Route:
    """One line of the table. `errors` are refusals beside those that every route has."""

    method: str
    path: str
    handler: Handler
    roles: frozenset[Role]
    tag: str
    status: int = 200
    errors: dict[int, str] = field(default_factory=dict[int, str])
    #: Larger bodies are refused; 0: as the server says.
    max_body: int = 0
    #: Other statuses that are no refusals.
    also: dict[int, str] = field(default_factory=dict[int, str])
    #: The body is passed as it comes, of any type; the types of what is sent and answered instead of JSON.
    takes: str = "application/json"
    gives: str = "application/json"

    @property
    def name(self) -> str:
        return self.handler.__name__

    @cached_property
    def hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.handler, include_extras=True)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @cached_property
    def query(self) -> type[Query] | None:
        return self.hints.get("query")

    @cached_property
    def body(self) -> Any:
        """The type of the body; None: there is none, whatever a client sends."""
        return self.hints.get("body")

    @cached_property
    def read(self) -> Callable[[bytes], Any]:
        """JSON as its body."""
        return msgspec.json.Decoder(self.body).decode

    @cached_property
    def body_needed(self) -> bool:
        """Whether an empty body is a mistake: not where every field has a default."""
        kind = self.body
        if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
            return kind is not None
        return any(f.required for f in msgspec.structs.fields(kind))

    @cached_property
    def reply(self) -> Any:
        """The type of the answer; None: it has no body."""
        hint = self.hints.get("return")
        return None if hint is type(None) else hint

    @cached_property
    def streams(self) -> bool:
        """Whether it answers, perhaps, with events as they happen."""
        return "EventStream" in str(self.handler.__annotations__.get("return", ""))

    @cached_property
    def text(self) -> str:
        """What the handler says of itself."""
        return inspect.cleandoc(self.handler.__doc__ or "")

    @cached_property
    def summary(self) -> str:
        return " ".join(self.text.partition("\n\n")[0].split()).rstrip(".")


def is_optional(kind: Any) -> bool:
    """Whether None is among the values of a type."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType) and type(None) in typing.get_args(kind)
