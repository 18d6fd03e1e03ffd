"""The HTTP API reference as Markdown, built from the route table: `scripts/docs_tables` puts it into the docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from backstay.server.http import openapi
from backstay.server.http.route import ROLES, Route
from backstay.server.routes.table import TABLE


def render_routes() -> str:
    """Render all routes as Markdown, one table per tag."""
    lines: list[str] = []
    for tag in dict.fromkeys(route.tag for route in TABLE):
        lines += [f"### {tag.capitalize()}", "", "| route | roles | request → response | |", "|---|---|---|---|"]
        lines += [_line(route) for route in TABLE if route.tag == tag]
        lines.append("")
    return "\n".join(lines).rstrip()


def _line(route: Route) -> str:
    refusals = ", ".join(str(status) for status in sorted(route.errors))
    also = ", ".join(str(status) for status in route.other_statuses)
    statuses = str(route.status) + (f", {also}" if also else "") + (f"; {refusals}" if refusals else "")
    takes = _body(route.body, route.consumes) if route.body is not None else ""
    if route.query is not None:
        takes = (takes + " " if takes else "") + f"?[{_name(route.query)}](#{_anchor(route.query)})"
    gives = _reply(route)
    text = " ".join(route.text.split()).replace("|", "\\|")
    who = "all" if len(route.roles) == len(ROLES) else ", ".join(sorted(route.roles)) or "open"
    moves = f"{takes} → {gives}" if takes else f"→ {gives}"
    return f"| `{route.method} {route.path}` | {who} | {moves} | {text} ({statuses}) |"


def _body(kind: Any, media: str) -> str:
    return f"[{_name(kind)}](#{_anchor(kind)})" if media == "application/json" else f"`{media.partition(',')[0]}`"


def _reply(route: Route) -> str:
    if route.reply is None:
        return "nothing"
    kinds = openapi.reply_types(route)
    if not kinds:
        return f"`{route.produces.partition(';')[0]}`"
    return " or ".join(_kind(kind) for kind in kinds)


def _kind(kind: Any) -> str:
    if kind is type(None):
        return "null"
    if kind is bool:
        return "`true` or `false`"
    args = getattr(kind, "__args__", ())
    if args and getattr(kind, "__origin__", None) is list:
        return f"a list of {_kind(args[0])}"
    if getattr(kind, "__origin__", None) is dict:
        return "an object"
    return f"[{_name(kind)}](#{_anchor(kind)})"


def _name(kind: Any) -> str:
    return str(kind.__name__)


def _anchor(kind: Any) -> str:
    return _name(kind).lower()


def render_bodies() -> str:
    """Render the fields of all request and response bodies and of all query strings as Markdown, one table for each."""
    components: dict[str, Any] = openapi.build_document(TABLE)["components"]["schemas"]
    components |= openapi.query_schemas(TABLE)
    lines: list[str] = []
    for name, schema in sorted(components.items()):
        lines += [f"### {name}", ""]
        if description := schema.get("description"):
            lines += [" ".join(description.split()), ""]
        lines += ["| field | type | default |", "|---|---|---|", *_fields(schema), ""]
    return "\n".join(lines).rstrip()


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    for name, kind in schema.get("properties", {}).items():
        default = "" if name in required or "default" not in kind else f"`{_json(kind['default'])}`"
        yield f"| `{name}` | {_type(kind)} | {default} |"


def _json(value: Any) -> str:
    return json.dumps(value)


def _type(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_type(one) for one in kind["anyOf"])
    if "enum" in kind:
        return ", ".join(f"`{_json(one)}`" for one in kind["enum"])
    word = str(kind.get("type", "anything"))
    if word == "array":
        word = f"list of {_type(kind.get('items', {}))}"
    bounds = [
        f"{label} {kind[key]}"
        for key, label in (
            ("minLength", "at least"),
            ("maxLength", "up to"),
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("maxItems", "up to"),
        )
        if key in kind
    ]
    return f"{word} ({', '.join(bounds)})" if bounds else word
