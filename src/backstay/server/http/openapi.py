"""The OpenAPI 3.1 document, built from the route table."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from types import UnionType
from typing import Any

import msgspec

from backstay.http.problem import MEDIA_TYPE
from backstay.server.http.response import Response, Stream, Text
from backstay.server.http.route import Route
from backstay.server.schemas.workflows import ProblemView

REFS = "#/components/schemas/{name}"


def common_errors(route: Route) -> dict[int, str]:
    """Return the error statuses, with descriptions, that follow from a route's roles, body, query and parameters."""
    found = {400: "The request is malformed."}
    if route.roles:
        found |= {
            401: "The token is missing or not valid.",
            403: "The token lacks the role that this route requires.",
            421: "Without tokens, the Host header must name this server.",
            429: "Too many requests.",
        }
    if route.body is not None:
        found |= {
            408: "The body did not arrive in time.",
            413: "The body is too large.",
            415: "The route does not take this media type.",
        }
    if route.query is not None or route.body is not None or route.roles:
        found[422] = "The request is well-formed, and a value in it is invalid."
    if route.parameters or route.query is not None:
        found[414] = "The path or query is too long."
    found |= {
        431: "The headers are too large.",
        503: "The engine is unavailable, or too many streams and long polls are open. Try again later.",
    }
    return found


def reply_types(route: Route) -> list[Any]:
    """Return the types of the JSON bodies that a route may respond with."""
    hint = route.reply
    parts: tuple[Any, ...] = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds: list[Any] = [
        part
        for part in parts
        if part is not Response and not (isinstance(part, type) and issubclass(part, (Stream, Text)))
    ]
    return [] if hint is None else kinds


def _union(kinds: list[Any]) -> Any:
    made: Any = kinds[0]
    for kind in kinds[1:]:
        made = made | kind
    return made


def build_document(routes: Sequence[Route]) -> dict[str, Any]:
    """Build the OpenAPI document of these routes as a dict that can be encoded as JSON."""
    kinds: list[Any] = [ProblemView]
    for route in routes:
        if route.body is not None and route.consumes == "application/json":
            kinds.append(route.body)
        if route.query is not None:
            kinds.append(route.query)
        if replies := reply_types(route):
            kinds.append(_union(replies))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFS)
    by_kind = {_key(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    queries = {route.query.__name__ for route in routes if route.query is not None}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Backstay",
            "version": version("backstay"),
            "description": "Workflows, jobs, the worker protocol and coordination. Errors are RFC 9457 bodies.",
        },
        "paths": paths,
        "components": {
            "responses": _refusals(routes, by_kind),
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Created by `backstay token create`."}
            },
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
    }


def query_schemas(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the schemas of all query parameter types, by name."""
    kinds = [route.query for route in routes if route.query is not None]
    _, components = msgspec.json.schema_components(kinds, ref_template=REFS)
    return components


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
        "description": route.text,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1, "maxLength": 512},
            }
            for name in route.parameters
        ],
    }
    if route.query is not None:
        made["parameters"] += _query_parameters(components[route.query.__name__])
    if route.streams:
        made["parameters"].append(
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}}
        )
    if not made["parameters"]:
        del made["parameters"]
    if route.body is not None:
        content: dict[str, Any]
        if route.consumes == "application/json":
            content = {"application/json": {"schema": schemas[_key(route.body)]}}
        else:
            content = {kind: {"schema": {}} for kind in route.consumes.split(", ")}
        made["requestBody"] = {"required": route.body_required, "content": content}
    made["responses"] = _responses(route, schemas)
    if route.roles:
        made["security"] = [{"token": []}]
        made["x-roles"] = sorted(route.roles)
    else:
        made["security"] = []
    return made


def _responses(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    replies = reply_types(route)
    media = route.produces.partition(";")[0]
    good: dict[str, Any] = {"description": route.summary}
    if replies:
        good["content"] = {"application/json": {"schema": schemas[_key(_union(replies))]}}
        if route.streams:
            good["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    elif route.reply is not None:
        good["content"] = {media: {"schema": {"type": "string"}}}
    responses = {str(route.status): good}
    for status, description in route.other_statuses.items():
        responses[str(status)] = {**good, "description": description}
    refusal = _refusal(schemas)
    for status, description in sorted({**common_errors(route), **route.errors}.items()):
        if str(status) in responses:  # this status is also a success: the body may be of either type
            content = {**refusal, **responses[str(status)].get("content", {})}
            responses[str(status)] = {"description": description, "content": content}
        elif status in route.errors:
            responses[str(status)] = {"description": description, "content": refusal}
        else:
            responses[str(status)] = {"$ref": f"#/components/responses/{HTTPStatus(status).name}"}
    return responses


def _refusal(schemas: dict[str, Any]) -> dict[str, Any]:
    return {MEDIA_TYPE: {"schema": schemas[_key(ProblemView)]}}


def _refusals(routes: Sequence[Route], schemas: dict[str, Any]) -> dict[str, Any]:
    """Build the error responses that several routes have in common. The document contains each once, and routes refer
    to it by name.
    """
    known = {status: description for route in routes for status, description in common_errors(route).items()}
    return {
        HTTPStatus(status).name: {"description": description, "content": _refusal(schemas)}
        for status, description in sorted(known.items())
    }


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": kind}
        for name, kind in schema.get("properties", {}).items()
    ]
