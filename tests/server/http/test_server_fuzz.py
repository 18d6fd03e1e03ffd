"""Fuzzed requests to every route get no 5xx and no undocumented response. Requests are generated from the OpenAPI
document, so a new route is tested automatically. `test_server_schemathesis.py` does the same with schemathesis.
"""

from __future__ import annotations

import math
import re
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay.server.http import openapi
from backstay.server.routes.table import TABLE
from backstay.server.settings import ServerSettings
from support.server.site import serving

DOCUMENT = openapi.build_document(TABLE)
SCHEMAS = DOCUMENT["components"]["schemas"]
ROUTES = [route for route in TABLE if route.produces != "text/event-stream"]

#: Fields that make a request wait; always sent as 0 here.
WAITS = {"poll_seconds", "wait_seconds", "wait_secs", "max_wait_seconds"}
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
    with serving(url, settings=ServerSettings(access_log=False, rate="")) as running:
        yield running


def values(schema, name=""):
    """Return a strategy for values that a schema allows."""
    if "$ref" in schema:
        return values(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of(*(values(one, name) for one in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if name in WAITS:
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
            {name: values(one, name) for name, one in fields.items() if name in required or name in WAITS},
            optional={
                name: values(one, name) for name, one in fields.items() if name not in required and name not in WAITS
            },
        )
    return ANYTHING


def perhaps_invalid(good):
    """Return a strategy for changed values that the schema may not allow."""
    spoil = st.tuples(good, TEXT, ANYTHING).map(
        lambda made: {**made[0], made[1]: made[2]} if isinstance(made[0], dict) else made[2]
    )
    return st.one_of(spoil, ANYTHING)


def matches_schema(value, schema):
    """Whether a value matches a schema; supports the part of JSON Schema that msgspec generates."""
    if "$ref" in schema:
        return matches_schema(value, SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(matches_schema(value, one) for one in schema["anyOf"])
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
            return isinstance(value, list) and all(matches_schema(one, schema.get("items", {})) for one in value)
        case "object":
            if not isinstance(value, dict):
                return False
            known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
            return all(name in value for name in schema.get("required", [])) and all(
                matches_schema(one, known[name])
                if name in known
                else not isinstance(rest, dict) or matches_schema(one, rest)
                for name, one in value.items()
            )
        case _:
            return True


def check(route, answer):
    assert answer.status_code < 500, answer.text
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    assert str(answer.status_code) in operation["responses"], (answer.status_code, answer.text)
    response = operation["responses"][str(answer.status_code)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    media = answer.headers.get("content-type", "").partition(";")[0]
    content = response.get("content", {})
    assert media in content or (not content and not media), (media, answer.text)
    if media.endswith("json"):
        assert matches_schema(answer.json(), content[media].get("schema", {})), answer.text


def name(route):
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_every_response_to_a_fuzzed_request_is_documented(fuzzed, route):
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    good = values(body) if body is not None else st.none()
    queries = [one for one in operation.get("parameters", []) if one["in"] == "query"]
    query = st.fixed_dictionaries({}, optional={one["name"]: st.one_of(values(one["schema"]), TEXT) for one in queries})

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(NAMES, min_size=3, max_size=3), query, st.one_of(good, perhaps_invalid(good)))
    def send_request(names, query_values, sent):
        path = route.path
        for parameter, given_name in zip(route.parameters, names, strict=False):
            path = path.replace(f"{{{parameter}}}", quote(given_name, safe="").replace(".", "%2E") or "x")
        query_values = {key: str(value) for key, value in query_values.items() if value is not None}
        if route.body is None:
            answer = fuzzed.http.request(route.method, path, params=query_values)
        else:
            if isinstance(sent, dict) and body is not None:
                fields = SCHEMAS.get(body.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
                sent = {**dict.fromkeys(WAITS & set(fields), 0), **sent}
            try:
                raw = msgspec.json.encode(sent)
            except (msgspec.EncodeError, ValueError, OverflowError, UnicodeEncodeError):
                return
            headers = {"content-type": "application/json"}
            answer = fuzzed.http.request(route.method, path, params=query_values, content=raw, headers=headers)
        check(route, answer)

    send_request()
    assert fuzzed.server.metrics.bugs == 0


def test_the_schema_checker_refuses_mismatches():
    assert matches_schema({"status": "ok"}, {"$ref": "#/components/schemas/Health"})
    assert not matches_schema({"status": "odd"}, {"$ref": "#/components/schemas/Health"})
    assert not matches_schema({}, {"$ref": "#/components/schemas/Health"})
    assert not matches_schema([1], {"type": "array", "items": {"type": "string"}})
    assert re.fullmatch(r"3\.1\.\d", DOCUMENT["openapi"])
