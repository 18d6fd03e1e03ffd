"""The OpenAPI document is complete and consistent, and the server serves it."""

from __future__ import annotations

import re

import pytest

from backstay.server.http import openapi
from backstay.server.http.route import Route
from backstay.server.http.router import Router
from backstay.server.metrics import BUCKETS
from backstay.server.routes.table import TABLE

DOCUMENT = openapi.build_document(TABLE)


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_every_route_is_in_the_document_once():
    listed = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in TABLE}
    ids = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_reference_of_the_document_resolves():
    for reference in set(references(DOCUMENT)):
        place = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place


def test_every_operation_documents_its_summary_roles_and_refusals():
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            assert len(operation["summary"]) > 10
            assert set(operation["responses"]) & {"200", "201", "202", "204"}
            if operation["security"]:
                assert {"401", "403", "429"} <= set(operation["responses"])
                assert operation["x-roles"]


def test_the_server_serves_its_openapi_document(site):
    served = site.get("/openapi.json").json()
    assert served == DOCUMENT
    assert served["openapi"] == "3.1.0"


def test_paths_of_the_document_are_those_of_the_router():
    router = Router(TABLE)
    for route in TABLE:
        path = re.sub(r"{\w+}", "x%20y", route.path)
        found, values = router.find(route.method, path.encode())
        assert found is route
        assert values == dict.fromkeys(route.parameters, "x y")


def test_duplicate_routes_are_refused():
    one = TABLE[0]
    with pytest.raises(ValueError, match="two routes"):
        Router([one, Route(one.method, one.path, one.handler, one.roles, one.tag)])


def test_metrics_are_prometheus_text(site):
    site.enqueue()
    site.get("/api/queues")
    response = site.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    line = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\})? -?[0-9.e+-]+')
    values = {}
    for text in response.text.splitlines():
        if not text.startswith("#"):
            assert line.fullmatch(text), text
            name, _, value = text.rpartition(" ")
            values[name] = float(value)
    assert values['backstay_jobs{queue="default",state="pending"}'] == 1
    assert values['backstay_http_requests_total{method="GET",route="/api/queues",status="200"}'] == 1
    assert values['backstay_http_request_seconds_bucket{route="/api/queues",le="+Inf"}'] == 1
    assert values["backstay_http_bugs_total"] == 0
    assert (
        len([name for name in values if name.startswith('backstay_http_request_seconds_bucket{route="/api/queues"')])
        == len(BUCKETS) + 1
    )


def test_the_access_log_has_no_secrets(tmp_path, caplog):
    import json
    import logging

    from backstay.server.settings import ServerSettings
    from support.server.site import serving

    with caplog.at_level(logging.INFO, "backstay.access"):
        with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=ServerSettings()) as site:
            site.get("/api/jobs?queue=private", headers={"x-api-key": "key-of-a-client"})
            site.post("/api/jobs", {"type": "t", "args": {"password": "hunter2"}})
            site.get("/api/jobs", headers={"authorization": "Bearer bst_id_secretsecret"})
        lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "backstay.access"]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("GET", "/api/jobs", 200),
        ("POST", "/api/jobs", 201),
        ("GET", "/api/jobs", 401),
    ]
    logged = caplog.text
    for secret in ("private", "key-of-a-client", "hunter2", "secretsecret"):
        assert secret not in logged
