"""Workflows and runs over HTTP, run by HTTP workers, on every engine."""

from __future__ import annotations

import pytest

from support.server.calls import CI, command, create, finish, start, statuses


def test_a_definition_is_stored_once_and_shown(any_site):
    created = create(any_site)
    assert created.status_code == 201, created.text
    assert create(any_site).json() == created.json()
    shown = created.json()
    assert (shown["id"], shown["name"], shown["version"], shown["run_id"]) == ("ci", "ci", 1, "")
    assert [job["id"] for job in shown["jobs"]] == ["build", "test", "publish"]
    assert [job["depends_on"] for job in shown["jobs"]] == [[], ["build"], ["test"]]
    assert {job["status"] for job in shown["jobs"]} == {"queued"}
    assert any_site.get("/api/workflows/ci").json()["definition"]["jobs"]["test"]["labels"] == ["linux"]
    assert create(any_site, CI.replace("echo test", "echo tests")).json()["version"] == 2
    assert any_site.get("/api/workflows/ci", params={"version": 1}).json()["version"] == 1
    assert any_site.get("/api/workflows/ci", params={"version": 9}).status_code == 404


def test_workers_run_a_dag_and_receive_upstream_outputs(any_site):
    create(any_site)
    began = start(any_site, inputs={"version": "2.0"})
    assert began.status_code == 202, began.text
    run = began.json()["run_id"]
    assert began.json()["workflow_id"] == "ci"
    build = command(any_site)
    assert build["job"]["command"] == "echo build 2.0"
    assert (build["job"]["job_id"], build["job"]["workflow_id"], build["job"]["run_id"]) == ("build", "ci", run)
    assert (build["lease"]["job_id"], build["lease"]["workflow_id"], build["lease"]["run_id"]) == ("build", "ci", run)
    assert build["job"]["inputs"] == {"version": "2.0"}
    assert (build["job"]["env"]["INPUT_VERSION"], build["job"]["env"]["BACKSTAY_RUN_ID"]) == ("2.0", run)
    assert command(any_site, labels=["linux"]) is None
    assert statuses(any_site) == ("running", {"build": "running", "test": "queued", "publish": "queued"})
    assert finish(any_site, build, file="a").json()["job_id"] == "build"
    assert command(any_site) is None  # the worker lacks the label
    test = command(any_site, labels=["linux"])
    assert test["job"]["upstream_outputs"] == {"build": {"file": "a", "wheel": "a.whl"}}
    assert test["job"]["upstream_results"] == {"build": "success"}
    assert test["job"]["env"]["NEEDS_BUILD_WHEEL"] == "a.whl"
    assert any_site.get("/api/jobs/ci/test/cancelled").json() is False
    any_site.post(f"/api/jobs/{test['lease']['lease_id']}/logs", {"chunks": [{"data": "ok", "sequence": 0}]})
    finish(any_site, test)
    (chunk,) = any_site.get("/api/workflows/ci/jobs/test/logs").json()
    assert (chunk["workflow_id"], chunk["run_id"], chunk["job_id"], chunk["data"]) == ("ci", run, "test", "ok")
    finish(any_site, command(any_site))
    assert statuses(any_site) == ("success", {"build": "success", "test": "success", "publish": "success"})
    shown = any_site.get(f"/api/runs/{run}").json()
    assert shown["counts"] == {"completed": 3}
    assert shown["inputs"] == {"version": "2.0"}
    assert shown["jobs"][0]["outputs"] == {"file": "a", "wheel": "a.whl"}
    assert any_site.get("/api/workflows/ci/jobs/build/artifacts").json()["outputs"]["wheel"] == "a.whl"


def test_a_failed_job_skips_its_dependents_and_can_be_retried(any_site):
    create(any_site)
    run = start(any_site).json()["run_id"]
    lease = command(any_site)["lease"]["lease_id"]
    any_site.post(f"/api/jobs/{lease}/fail", {"error": "no compiler"})
    assert statuses(any_site) == ("failure", {"build": "failure", "test": "skipped", "publish": "skipped"})
    assert any_site.get(f"/api/runs/{run}").json()["jobs"][0]["error"] == "no compiler"
    again = any_site.post(f"/api/runs/{run}/rerun-failed").json()
    assert again["status"] == "running"
    finish(any_site, command(any_site))
    lease = command(any_site, labels=["linux"])["lease"]["lease_id"]
    any_site.post(f"/api/jobs/{lease}/fail", {"retryable": False})
    assert any_site.post(f"/api/runs/{run}/jobs/test/retry").json()["status"] == "queued"
    finish(any_site, command(any_site, labels=["linux"]))
    finish(any_site, command(any_site))
    assert statuses(any_site)[0] == "success"


def test_a_cancelled_run_stays_cancelled_and_the_next_is_untouched(any_site):
    create(any_site)
    first = start(any_site).json()["run_id"]
    lease = command(any_site)["lease"]["lease_id"]
    cancelled = any_site.post("/api/workflows/ci/cancel", {"reason": "wrong branch"})
    assert cancelled.status_code == 202
    assert cancelled.json()["cancel_requested"]
    assert any_site.post(f"/api/jobs/{lease}/heartbeat").json() == {"cancelled": True}
    second = start(any_site).json()["run_id"]
    assert any_site.post(f"/api/jobs/{lease}/fail", {"error": "late"}).json()["status"] == "cancelled"
    assert statuses(any_site, run=first) == (
        "cancelled",
        {"build": "cancelled", "test": "cancelled", "publish": "cancelled"},
    )
    assert statuses(any_site)[0] == "queued"
    assert any_site.get("/api/jobs/ci/build/cancelled").json() is False
    assert any_site.get("/api/jobs/ci/build/cancelled", params={"run": first}).json() is True
    assert [run["id"] for run in any_site.get("/api/runs").json()] == [second, first]
    assert [run["id"] for run in any_site.get("/api/runs", params={"status": "cancelled"}).json()] == [first]


def test_a_request_id_starts_one_run(any_site):
    create(any_site)
    first = start(any_site, request_id="r1").json()["run_id"]
    assert start(any_site, request_id="r1").json()["run_id"] == first
    assert start(any_site, request_id="r2").json()["run_id"] != first
    assert start(any_site, request_id="r1", inputs={"version": "9"}).status_code == 422


def test_workflow_json_is_accepted_in_the_form_that_the_api_returns(any_site):
    body = {
        "id": "pipe",
        "name": "pipe",
        "trigger": "manual",
        "jobs": [
            {"id": "a", "name": "First", "status": "queued", "command": "echo a", "depends_on": [], "output": None},
            {"id": "b", "name": "Second", "command": "echo b", "depends_on": ["a"], "required_labels": ["gpu"]},
        ],
    }
    created = any_site.post("/api/workflows", body)
    assert created.status_code == 201, created.text
    assert [job["name"] for job in created.json()["jobs"]] == ["First", "Second"]
    start(any_site, "pipe")
    assert command(any_site)["job"]["command"] == "echo a"
    assert any_site.post("/api/workflows", created.json()).json()["version"] == 1
    assert any_site.post("/api/workflows", any_site.get("/api/workflows/pipe/status").json()).json()["version"] == 1


@pytest.mark.parametrize(
    "policy",
    [
        {"max_retries": 2, "backoff": {"Fixed": {"delay_secs": 7}}},
        {"max_retries": 3, "backoff": {"Exponential": {"base_secs": 2, "max_secs": 60}}},
        {"max_retries": 3, "backoff": {"Exponential": {"base_secs": 0, "max_secs": 0}}},
        {"max_retries": 0, "backoff": {"Fixed": {"delay_secs": 7}}},
        {"max_retries": 0, "backoff": "None"},
        {"max_retries": 2, "backoff": "None"},
    ],
    ids=["fixed", "exponential", "no growth", "no retries", "none", "at once"],
)
def test_a_retry_policy_in_workflow_json_applies_to_its_jobs(site, policy):
    jobs = [{"id": "a", "command": "echo a", "retry_policy": policy}]
    created = site.post("/api/workflows", {"id": "again", "name": "again", "jobs": jobs})
    assert created.status_code == 201, created.text
    start(site, "again")
    claimed = command(site)["job"]["retry_policy"]
    assert without_milliseconds(claimed) == policy
    assert created.json()["jobs"][0]["retry_policy"] == claimed
    assert site.post("/api/workflows", created.json()).json()["version"] == 1
    assert site.post("/api/workflows", site.get("/api/workflows/again/status").json()).json()["version"] == 1


def without_milliseconds(policy):
    """Return a retry policy without the exact values."""
    if policy["backoff"] == "None":
        return policy
    ((kind, delays),) = policy["backoff"].items()
    return {**policy, "backoff": {kind: {name: delays[name] for name in delays if name.endswith("_secs")}}}


def test_a_json_job_that_names_no_backoff_is_retried_at_once(any_site):
    jobs = [{"id": "a", "command": "false", "max_retries": 1}]
    assert any_site.post("/api/workflows", {"id": "again", "name": "again", "jobs": jobs}).status_code == 201
    start(any_site, "again")
    for attempt in (0, 1):
        found = command(any_site, wait_secs=20)
        assert found["job"]["attempt"] == attempt
        assert found["job"]["retry_policy"] == {"max_retries": 1, "backoff": "None"}
        reported = any_site.post(f"/api/jobs/{found['lease']['lease_id']}/fail", {"error": "no"}).json()
        assert reported["status"] == ("failure" if attempt else "queued")


def test_a_backoff_in_milliseconds_is_exact(site):
    yaml = "name: exact\njobs: {a: {run: echo, retries: 2, timeout: 100ms, backoff: {base: 1.5, max: 2200ms}}}\n"
    shown = create(site, yaml).json()
    exact = {"base_secs": 2, "max_secs": 3, "base_ms": 1500, "max_ms": 2200}
    assert shown["jobs"][0]["retry_policy"]["backoff"] == {"Exponential": exact}
    start(site, "exact")
    claimed = command(site)["job"]
    assert (claimed["timeout_secs"], claimed["timeout_ms"]) == (1, 100)
    stored = site.post("/api/workflows", {**shown, "id": "copy"}).json()
    assert stored["jobs"][0]["retry_policy"]["backoff"] == {"Exponential": exact}


@pytest.mark.parametrize(
    "policy",
    [
        7,
        {"retries": 2, "often": 1},
        {"backoff": {"Linear": {"delay_secs": 1}}},
        {"backoff": {"Fixed": {"secs": 1}}},
        {"backoff": {"Fixed": {"base_secs": 1}}},
        {"backoff": {"Exponential": {"delay_secs": 1}}},
        {"backoff": {"Exponential": {"base_secs": -1, "max_secs": 2}}},
    ],
    ids=repr,
)
def test_an_invalid_retry_policy_is_refused(site, policy):
    jobs = [{"id": "a", "command": "echo a", "retry_policy": policy}]
    refused = site.post("/api/workflows", {"id": "again", "name": "again", "jobs": jobs})
    assert refused.status_code == 422
    assert site.get("/api/workflows").json() == []


def test_a_json_workflow_keeps_its_name_and_trigger(any_site):
    jobs = [{"id": "a", "command": "echo a"}]
    body = {"id": "ci-1", "name": "CI Pipeline", "trigger": "on: push", "jobs": jobs}
    created = any_site.post("/api/workflows", body).json()
    assert (created["id"], created["name"], created["trigger"]) == ("ci-1", "CI Pipeline", "on: push")
    assert start(any_site, "ci-1").status_code == 202
    for shown in (any_site.get("/api/workflows").json()[0], any_site.get("/api/workflows/ci-1/status").json()):
        assert (shown["id"], shown["name"], shown["trigger"]) == ("ci-1", "CI Pipeline", "on: push")
    assert any_site.post("/api/workflows", shown).json()["version"] == 1


def test_every_problem_of_a_json_workflow_has_its_line(site):
    body = """{"id": "bad", "jobs": [
      {"id": "a", "command": "echo a", "depends_on": ["b"], "retires": 3},
      {"id": "b", "command": 7, "depends_on": ["a", "c"]},
      {"id": "a", "command": "echo again"},
      {"command": "echo unnamed"},
      "text"
    ]}"""
    refused = create(site, body, "application/json")
    assert refused.status_code == 422
    problems = {(one["line"], one["message"].partition(";")[0]) for one in refused.json()["problems"]}
    assert {line for line, _ in problems} == {2, 3, 4, 5, 6}
    assert (2, "'retires' is not a key of job 'a'") in problems
    assert (4, "job 'a' is defined twice") in problems
    assert site.get("/api/workflows").json() == []


def test_workflows_are_listed_by_name_in_pages(any_site):
    for n in range(5):
        create(any_site, CI.replace("name: ci", f"name: ci-{n}"))
    start(any_site, "ci-3")
    names = [one["id"] for one in any_site.get("/api/workflows").json()]
    assert names == [f"ci-{n}" for n in range(5)]
    page = any_site.get("/api/workflows", params={"limit": 2, "offset": 2}).json()
    assert [one["id"] for one in page] == ["ci-2", "ci-3"]
    command(any_site)
    running = any_site.get("/api/workflows", params={"status": "running"}).json()
    assert [one["id"] for one in running] == ["ci-3"]


def test_workflows_are_filtered_by_the_status_of_any_job(any_site):
    def listed(status):
        return [one["id"] for one in any_site.get("/api/workflows", params={"status": status}).json()]

    for name in ("idle", "mixed", "over"):
        create(any_site, CI.replace("name: ci", f"name: {name}"))
    start(any_site, "over")
    any_site.post("/api/workflows/over/cancel")
    start(any_site, "mixed")
    assert (listed("queued"), listed("cancelled"), listed("running")) == (["idle", "mixed"], ["over"], [])
    lease = command(any_site)["lease"]["lease_id"]
    assert (listed("queued"), listed("running")) == (["idle", "mixed"], ["mixed"])
    any_site.post(f"/api/jobs/{lease}/fail", {"retryable": False})
    assert (listed("failure"), listed("skipped"), listed("running")) == (["mixed"], ["mixed"], [])
    assert listed("queued") == ["idle"]
    assert any_site.get("/api/workflows", params={"status": "none"}).status_code == 422


def test_a_list_of_workflows_has_a_hundred_by_default(site):
    for n in range(102):
        site.do(site.stay.workflows.put({"name": f"w{n:03}", "jobs": {"a": {"run": "true"}}}))
    assert [one["id"] for one in site.get("/api/workflows").json()] == [f"w{n:03}" for n in range(100)]
    assert len(site.get("/api/workflows", params={"limit": 1000}).json()) == 102


def test_metadata_and_ports_of_a_job_are_stored_and_returned(any_site):
    ports = [
        {"id": "in", "label": "Message", "direction": "input", "port_type": "json", "color": None},
        {"id": "out", "label": "", "direction": "output", "port_type": "", "color": "#3b82f6"},
    ]
    metadata = {"node_type": "deploy", "x": 1.5, "n": 42, "on": True, "tags": ["a", {"b": None}]}
    job = {"id": "a", "name": "a", "command": "echo", "metadata": metadata, "ports": ports}
    plain = {"id": "b", "command": "echo", "metadata": {}, "ports": [], "children": None, "collapsed": False}
    created = any_site.post("/api/workflows", {"id": "drawn", "name": "drawn", "jobs": [job, plain]})
    assert created.status_code == 201, created.text
    start(any_site, "drawn")
    for shown in (created.json(), any_site.get("/api/workflows/drawn/status").json()):
        assert [(one["metadata"], one["ports"]) for one in shown["jobs"]] == [(metadata, ports), ({}, [])]
        assert any_site.post("/api/workflows", shown).json()["version"] == 1
    stored = any_site.get("/api/workflows/drawn").json()["definition"]
    assert any_site.post("/api/workflows", stored).json()["version"] == 1
    changed = {"id": "drawn", "name": "drawn", "jobs": [{**job, "metadata": {"n": 43}}, plain]}
    assert any_site.post("/api/workflows", changed).json()["version"] == 2
    assert any_site.get("/api/workflows/drawn/status").json()["jobs"][0]["metadata"] == metadata  # of its run


@pytest.mark.parametrize(
    "job",
    [
        {"metadata": ["text"]},
        {"metadata": "text"},
        {"metadata": {"text": "x" * 70_000}},
        {"metadata": {"text": "x" * 6000}, "matrix": {"n": list(range(250))}},
        {"ports": {"id": "in"}},
        {"ports": ["in"]},
        {"ports": [{"id": "in", "label": "In"}]},
        {"ports": [{"id": "in", "label": "In", "direction": "up"}]},
        {"ports": [{"id": 7.5, "label": [], "direction": "input"}]},
        {"ports": [{"id": "in", "label": "In", "direction": "input", "side": "left"}]},
        {"ports": [{"id": f"p{n}", "label": "", "direction": "input"} for n in range(101)]},
        {"children": [{"id": "b", "command": "echo"}]},
        {"collapsed": True},
    ],
    ids=lambda job: next(iter(job)),
)
def test_metadata_and_ports_that_are_wrong_or_too_large_are_refused(site, job):
    body = {"id": "drawn", "name": "drawn", "jobs": [{"id": "a", "command": "echo", **job}]}
    refused = site.post("/api/workflows", body)
    assert refused.status_code == 422
    assert site.get("/api/workflows").json() == []


def test_retrying_a_job_is_refused_until_its_failed_need_is_retried(any_site):
    create(any_site)
    run = start(any_site).json()["run_id"]
    any_site.post(f"/api/jobs/{command(any_site)['lease']['lease_id']}/fail", {"retryable": False})
    assert statuses(any_site) == ("failure", {"build": "failure", "test": "skipped", "publish": "skipped"})
    for job in ("test", "publish"):
        refused = any_site.post(f"/api/runs/{run}/jobs/{job}/retry")
        assert refused.status_code == 409
        assert "build failed" in refused.json()["detail"]
    shown = any_site.get(f"/api/runs/{run}").json()
    uid = next(job["uid"] for job in shown["jobs"] if job["id"] == "publish")
    assert any_site.post(f"/api/jobs/{uid}/retry").status_code == 409
    assert statuses(any_site)[0] == "failure"
    assert command(any_site) is None
    assert any_site.post(f"/api/runs/{run}/jobs/build/retry").status_code == 200
    assert statuses(any_site) == ("running", dict.fromkeys(("build", "test", "publish"), "queued"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\njobs:\n  a: {run: echo, needs: b}\n", "b"),
        ("name: x\njobs:\n  a: {run: echo, needs: b}\n  b: {run: echo, needs: a}\n", "a"),
        ("name: x\njobs:\n  a: {run: echo, nonsense: 1}\n", "nonsense"),
        ("name: x\njobs:\n  a: {run: [}\n", ""),
        ("name: x\n", "jobs"),
        ("", ""),
        ("[]", ""),
        ("\ufffe", ""),
    ],
)
def test_every_problem_of_a_definition_is_listed_and_nothing_is_stored(site, text, words):
    response = create(site, text.encode())
    assert response.status_code == 422, response.text
    reply = response.json()
    assert reply["problems"]
    assert all(set(problem) == {"message", "line", "column"} for problem in reply["problems"])
    assert any(words in problem["message"] for problem in reply["problems"])
    assert site.get("/api/workflows").json() == []


def test_a_definition_of_another_type_or_size_is_refused(site):
    assert create(site, CI, "text/plain").status_code == 415
    assert create(site, b"{", "application/json").status_code == 400
    assert create(site, b"[" * 100_000, "application/json").status_code == 400
    assert create(site, b"#" * 2_000_000).status_code == 413
    bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nname: x\njobs: {a: {run: x}}\n"
    assert create(site, bomb).status_code == 422


def test_invalid_inputs_start_no_run(site):
    create(site)
    response = start(site, inputs={"nonsense": 1})
    assert response.status_code == 422
    assert site.get("/api/runs").json() == []
