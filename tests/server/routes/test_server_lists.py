"""Lists are bounded: neither many nor large jobs make a response, or the memory for it, grow without limit."""

from __future__ import annotations

import pytest

from backstay.server.routes import logs
from backstay.server.views import pages
from backstay.workflow.document.effort import MOST_SECONDS

YAML = {"content-type": "application/yaml"}


def enqueue_large(site, count, size):
    for _ in range(count):
        site.enqueue(args={"text": "x" * size})


def test_a_list_leaves_out_large_arguments(any_site):
    enqueue_large(any_site, 3, pages.LARGEST_VALUE + 1)
    small = any_site.enqueue(args={"text": "y"})
    first, *others = any_site.get("/api/jobs").json()
    assert (first["id"], first["args"], first["truncated"]) == (small, {"text": "y"}, False)
    assert [(job["args"], job["truncated"]) for job in others] == [(None, True)] * 3
    whole = any_site.get(f"/api/jobs/{others[0]['id']}").json()
    assert len(whole["args"]["text"]) == pages.LARGEST_VALUE + 1
    assert not whole["truncated"]


def test_a_page_ends_before_it_is_too_large_and_the_next_one_continues(site, monkeypatch):
    monkeypatch.setattr(pages.PageBudget.__init__, "__defaults__", (20_000,))
    enqueue_large(site, 10, 5000)
    seen = []
    before = ""
    while page := site.get(f"/api/jobs?before={before}").json():
        assert 0 < len(page) < 10
        seen += [job["id"] for job in page]
        before = page[-1]["id"]
    assert len(seen) == len(set(seen)) == 10


def test_large_rows_are_read_in_small_pages(site, monkeypatch):
    monkeypatch.setattr(pages, "FIRST_ROWS", 2)
    monkeypatch.setattr(pages, "READ_BYTES", 20_000)
    monkeypatch.setattr(pages, "FEWEST_ROWS", 3)
    enqueue_large(site, 20, 5000)
    asked = []
    real = site.server.store.list_jobs

    def list_jobs(**options):
        asked.append(options["limit"])
        return real(**options)

    monkeypatch.setattr(site.server.store, "list_jobs", list_jobs)
    assert len(site.get("/api/jobs?limit=15").json()) == 15
    assert max(asked) <= 4
    assert sum(asked) >= 15


def test_a_log_page_ends_before_it_is_too_large(site, monkeypatch):
    monkeypatch.setattr(pages.PageBudget.__init__, "__defaults__", (20_000,))
    monkeypatch.setattr(logs, "LINES", 3)
    job = site.enqueue()
    lease = site.claim()["lease"]["lease_id"]
    chunks = [{"data": "x" * 5000, "sequence": n} for n in range(10)]
    assert site.post(f"/api/jobs/{lease}/logs", {"chunks": chunks}).status_code == 200
    seen, after = [], ""
    while page := site.get(f"/api/workflows/-/jobs/{job}/logs{after}").json():
        assert len(page) < 10
        seen += page
        after = f"?after={page[-1]['sequence']}"
    assert [chunk["sequence"] for chunk in seen] == list(range(10))


def test_a_workflow_that_is_too_large_for_its_list_is_listed_without_jobs(site, monkeypatch):
    for name in "ab":
        text = f"name: {name}\njobs: {{j: {{run: '{'x' * 5000}'}}}}"
        assert site.http.post("/api/workflows", content=text, headers=YAML).status_code == 201
    monkeypatch.setattr(pages.PageBudget.__init__, "__defaults__", (8000,))
    found = site.get("/api/workflows").json()
    assert [(one["id"], len(one["jobs"]), one["truncated"]) for one in found] == [("a", 1, False), ("b", 0, True)]
    assert len(site.get("/api/workflows/b/status").json()["jobs"]) == 1


def test_large_results_are_left_out_of_a_runs_jobs(site):
    text = "name: w\njobs: {a: {run: x}, b: {run: x}}"
    site.http.post("/api/workflows", content=text, headers=YAML)
    run = site.post("/api/workflows/w/run").json()["run_id"]
    for size in (10, pages.LARGEST_VALUE):
        lease = site.post("/api/jobs/claim", {"worker_id": "w"}).json()["lease"]["lease_id"]
        site.post(f"/api/jobs/{lease}/complete", {"outputs": {"o": "x" * size}})
    jobs = site.get(f"/api/runs/{run}").json()["jobs"]
    assert sorted((len(job["outputs"]), job["truncated"]) for job in jobs) == [(0, True), (1, False)]


# ── attacks ──


def test_a_definition_whose_variables_double_starts_no_run(any_site):
    """A definition of 1 kB became a job of 537 MB."""
    lines = "".join(f"      A{n}: '${{{{ env.A{n - 1} }}}}${{{{ env.A{n - 1} }}}}'\n" for n in range(1, 30))
    text = f"name: bomb\njobs:\n  a:\n    run: echo\n    env:\n      A0: xxxxxxxxxxxxxxxx\n{lines}"
    assert any_site.http.post("/api/workflows", content=text, headers=YAML).status_code == 201
    response = any_site.post("/api/workflows/bomb/run")
    assert response.status_code == 422
    assert "job 'a'" in response.json()["detail"]
    assert any_site.get("/api/jobs").json() == []
    assert any_site.get("/api/runs").json() == []


def test_a_large_run_is_planned_outside_the_event_loop(site, monkeypatch):
    """Also its matrix is expanded there. A small run is planned at once."""
    used = []
    real = site.server.workflow_thread.run

    async def run(caller, function):
        used.append(caller)
        return await real(caller, function)

    monkeypatch.setattr(site.server.workflow_thread, "run", run)
    values = ", ".join(map(str, range(30)))
    text = f"name: wide\njobs: {{a: {{run: x, matrix: {{p: [{values}], q: [{values}]}}}}}}"
    assert site.http.post("/api/workflows", content=text, headers=YAML).status_code == 201
    assert site.http.post("/api/workflows", content="name: s\njobs: {a: {run: x}}", headers=YAML).status_code == 201
    assert len(used) == 2, "definitions are read there, too"
    assert site.post("/api/workflows/s/run").status_code == 202
    assert len(used) == 2
    run_id = site.post("/api/workflows/wide/run").json()["run_id"]
    assert len(used) == 3
    assert len(site.get(f"/api/runs/{run_id}").json()["jobs"]) == 900


@pytest.mark.parametrize("kind", ["excludes", "unknown names"])
def test_a_hostile_definition_is_answered_within_the_limits_of_reading(site, kind):
    if kind == "excludes":
        axes = ", ".join(f"{name}: [{', '.join(map(str, range(10)))}]" for name in "abc")
        entries = ", ".join("{a: 1, b: 2, c: 77}" for _ in range(7000))
        text = f"name: w\njobs: {{a: {{run: x, matrix: {{{axes}, exclude: [{entries}]}}}}}}"
    else:
        text = "name: w\njobs:\n" + "".join(
            f"  some_long_name_{n}: {{run: x, needs: some_lng_name_{n}}}\n" for n in range(2000)
        )
    response = site.http.post("/api/workflows", content=text, headers=YAML, timeout=4 * MOST_SECONDS)
    assert response.status_code == 422
    assert len(response.content) < 100_000
    assert site.get("/healthz").status_code == 200


def test_arguments_that_only_a_python_program_can_store_are_left_out(site):
    job = site.stay.job(name="big", payload_limit=10_000_000)(_take)
    site.do(job.enqueue(b"y" * 3_000_000))
    response = site.get("/api/jobs")
    assert response.json()[0]["truncated"]
    assert len(response.content) < 2000


async def _take(x: bytes) -> None: ...
