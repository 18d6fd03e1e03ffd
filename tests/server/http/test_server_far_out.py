"""The API refuses values that an engine cannot store, the same way on every engine."""

from __future__ import annotations

import base64
import threading

import msgspec
import pytest

FLOW = "name: flow\ninputs: {n: 1, text: {type: string, default: x}}\njobs: {a: {run: 'true'}}\n"
HUGE = 10**30
YAML = {"content-type": "application/yaml"}


@pytest.fixture
def run(any_site):
    any_site.http.post("/api/workflows", content=FLOW, headers=YAML)
    return any_site.post("/api/workflows/flow/run").json()["id"]


def refused(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("inputs", ['{"n": 1e999}', f'{{"n": {HUGE}}}', f'{{"n": -{HUGE}}}', '{"text": "a\\u0000b"}'])
def test_an_input_out_of_range_starts_no_run(any_site, run, inputs):
    content = f'{{"inputs": {inputs}}}'
    response = any_site.http.post(
        "/api/workflows/flow/run", content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code in (400, 422), response.text
    assert [one["id"] for one in any_site.get("/api/runs").json()] == [run]


def test_a_stream_position_out_of_range_is_refused(any_site, run):
    log, events = "/api/workflows/flow/jobs/a/logs", f"/api/runs/{run}/events"
    for path in (log, f"{log}/stream", events, f"{events}/stream"):
        refused(any_site.get(path, params={"after": HUGE}), 422)
    for path in (f"{log}/stream", f"{events}/stream"):
        refused(any_site.get(path, headers={"last-event-id": str(HUGE)}), 400)


@pytest.mark.parametrize(
    "cursor", ["garbage", "-1", "1:2:3", "9" * 30, "9" * 30 + "-1", "9" * 30 + ".1", "", " 1", "\0"]
)
def test_an_event_cursor_that_no_server_issued_is_refused(any_site, run, cursor):
    made = base64.urlsafe_b64encode(msgspec.msgpack.encode([[cursor], [f"{run}.1"]])).rstrip(b"=").decode()
    if not cursor:  # the position before the first event is valid
        with any_site.http.stream("GET", "/api/events", params={"after": made}) as response:
            assert response.status_code == 200
        return
    refused(any_site.get("/api/events", params={"after": made}), 400)
    refused(any_site.get("/api/events", headers={"last-event-id": made}), 400)


def test_a_nul_in_a_name_is_refused(any_site):
    refused(any_site.post("/api/jobs", {"type": "t", "labels": ["a\0b"]}), 422)
    refused(any_site.post("/api/jobs", {"type": "t\0"}), 422)
    refused(any_site.post("/api/workers/register", {"worker_id": "w\0"}), 422)
    refused(any_site.post("/api/jobs/claim", {"worker_id": "w", "labels": ["\0"]}), 422)
    refused(any_site.get("/api/jobs?queue=%00"), 422)
    refused(any_site.get("/api/jobs?type=a%00b"), 422)
    refused(any_site.get("/api/runs?before=%00"), 422)
    refused(any_site.post("/api/queues/%00/pause"), 400)
    refused(any_site.get("/api/workflows/a%00b/status"), 400)


def test_reading_a_large_definition_does_not_block_other_requests(site):
    """Parsing takes seconds; the server answers other requests meanwhile."""
    jobs = "".join(f"  j{n}: {{run: x}}\n" for n in range(9000))
    responses = []
    with_it = threading.Thread(
        target=lambda: responses.append(
            site.http.post("/api/workflows", content=f"name: big\njobs:\n{jobs}", headers=YAML, timeout=200)
        )
    )
    with_it.start()
    meanwhile = 0
    while with_it.is_alive():
        assert site.get("/healthz").status_code == 200
        meanwhile += with_it.is_alive()
    assert responses[0].status_code == 201, responses[0].text[:500]
    assert meanwhile > 5
