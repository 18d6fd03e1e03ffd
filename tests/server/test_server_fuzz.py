"""Anything at all, at every route: no 5xx, no answer outside the document. Requests are made from the document itself,
so a new route is tested with its first line. `test_server_schemathesis.py` does the same with other eyes.
"""

from __future__ import annotations

import math
import re
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from site_of_tests import serving

from backstay.server.http import openapi
from backstay.server.routes.table import TABLE
from backstay.server.settings import Settings

DOCUMENT = openapi.document(TABLE)
SCHEMAS = DOCUMENT["components"]["schemas"]
ROUTES = [route for route in TABLE if route.gives != "text/event-stream"]

#: Waits are for others to test.
SHORT = {"poll_seconds", "wait_seconds", "wait_secs", "max_wait_seconds"}
TEXT = st.text(max_size=20)
NAMES = st.one_of(st.sampled_from(["a", "-", "ci", "0-00", "0-1a1e40a17ce000000e660aab2b38.5", "w1", "default"]), TEXT)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'backstay.db'}?synchronous=normal"
    with serving(url, settings=Settings(access_log=False, rate="")) as running:
        yield running


def values(schema, name=""):
    """Values that a schema allows."""
    if "$ref" in schema:
        return values(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of(*(values(one, name) for one in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if name in SHORT:
        return st.just(0)
    if kind == "string":
        return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 20), 20))
    if kind == "integer":
        return st.integers(schema.get("minimum", -(2**53)), schema.get("maximum", 2**53))
    if kind == "number":
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1e9))
        return st.floats(low, schema.get("maximum", 1e9), exclude_min="exclusiveMinimum" in schema, allow_nan=False)
    if kind == "boolean":
        return st.booleans()
    if kind == "null":
        return st.none()
    if kind == "array":
        return st.lists(values(schema.get("items", {})), min_size=schema.get("minItems", 0), max_size=3)
    if kind == "object":
        fields = schema.get("properties")
        if fields is None:
            return st.dictionaries(TEXT, values(schema.get("additionalProperties") or {}), max_size=3)
        required = schema.get("required", [])
        return st.fixed_dictionaries(
            {name: values(one, name) for name, one in fields.items() if name in required or name in SHORT},
            optional={
                name: values(one, name) for name, one in fields.items() if name not in required and name not in SHORT
            },
        )
    return ANYTHING


def broken(good):
    """Something like it that the schema does not allow, perhaps."""
    spoil = st.tuples(good, TEXT, ANYTHING).map(
        lambda made: {**made[0], made[1]: made[2]} if isinstance(made[0], dict) else made[2]
    )
    return st.one_of(spoil, ANYTHING)


def fits(value, schema):
    """Whether a value is as the document says: enough of JSON Schema for what msgspec writes."""
    if "$ref" in schema:
        return fits(value, SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema.get("type"):
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list) and all(fits(one, schema.get("items", {})) for one in value)
        case "object":
            if not isinstance(value, dict):
                return False
            known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
            return all(name in value for name in schema.get("required", [])) and all(
                fits(one, known[name]) if name in known else not isinstance(rest, dict) or fits(one, rest)
                for name, one in value.items()
            )
        case _:
            return True


def check(route, answer):
    assert answer.status_code < 500, answer.text
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    assert str(answer.status_code) in operation["responses"], (answer.status_code, answer.text)
    told = operation["responses"][str(answer.status_code)]
    if "$ref" in told:
        told = DOCUMENT["components"]["responses"][told["$ref"].rpartition("/")[2]]
    media = answer.headers.get("content-type", "").partition(";")[0]
    content = told.get("content", {})
    assert media in content or (not content and not media), (media, answer.text)
    if media.endswith("json"):
        assert fits(answer.json(), content[media].get("schema", {})), answer.text


def name(route):
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_whatever_is_asked_the_answer_is_in_the_document(fuzzed, route):
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    good = values(body) if body is not None else st.none()
    queries = [one for one in operation.get("parameters", []) if one["in"] == "query"]
    query = st.fixed_dictionaries({}, optional={one["name"]: st.one_of(values(one["schema"]), TEXT) for one in queries})

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(NAMES, min_size=3, max_size=3), query, st.one_of(good, broken(good)))
    def ask(names, asked, sent):
        path = route.path
        for parameter, given_name in zip(route.parameters, names, strict=False):
            path = path.replace(f"{{{parameter}}}", quote(given_name, safe="").replace(".", "%2E") or "x")
        asked = {key: str(value) for key, value in asked.items() if value is not None}
        if route.body is None:
            answer = fuzzed.http.request(route.method, path, params=asked)
        else:
            if isinstance(sent, dict) and body is not None:
                fields = SCHEMAS.get(body.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
                sent = {**dict.fromkeys(SHORT & set(fields), 0), **sent}
            try:
                raw = msgspec.json.encode(sent)
            except (msgspec.EncodeError, ValueError, OverflowError, UnicodeEncodeError):
                return
            headers = {"content-type": "application/json"}
            answer = fuzzed.http.request(route.method, path, params=asked, content=raw, headers=headers)
        check(route, answer)

    ask()
    assert fuzzed.server.metrics.bugs == 0


def test_the_checker_refuses_what_does_not_fit():
    assert fits({"status": "ok"}, {"$ref": "#/components/schemas/Health"})
    assert not fits({"status": "odd"}, {"$ref": "#/components/schemas/Health"})
    assert not fits({}, {"$ref": "#/components/schemas/Health"})
    assert not fits([1], {"type": "array", "items": {"type": "string"}})
    assert re.fullmatch(r"3\.1\.\d", DOCUMENT["openapi"])
