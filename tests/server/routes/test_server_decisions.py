"""A job with a decision job (for its `if`, or for texts that use other jobs' outputs) is shown with its own status, log
and events, not with those of the decision.
"""

from __future__ import annotations

import json

import pytest

from backstay.job.reserved import INTERNAL

FLOW = """\
name: flow
on: push
jobs:
  first: {run: "true"}
  second:
    needs: first
    if: needs.first.outputs.go == 'yes'
    retries: 2
    labels: [big]
    run: echo second
  third: {needs: second, if: failure(), run: echo third}
"""


def begin(site):
    site.http.post("/api/workflows", content=FLOW, headers={"content-type": "application/yaml"})
    return site.post("/api/workflows/flow/run").json()["id"]


def decide(site):
    site.do(site.stay.worker(queues=[INTERNAL]).run(burst=True))


def claim(site):
    return site.post("/api/jobs/claim", {"worker_id": "w", "labels": ["big"]}).json()


def end(site, found, verb="complete", **body):
    assert site.post(f"/api/jobs/{found['lease']['lease_id']}/{verb}", body).status_code == 200


def shown(site, run, job="second"):
    return next(one for one in site.get(f"/api/runs/{run}").json()["jobs"] if one["id"] == job)


def test_a_conditional_job_is_shown_as_itself_not_as_its_decision(any_site):
    run = begin(any_site)
    end(any_site, claim(any_site), outputs={"go": "yes"})
    before = shown(any_site, run)
    assert (before["status"], before["max_retries"], before["required_labels"]) == ("queued", 2, ["big"])
    decide(any_site)
    found = claim(any_site)
    during = shown(any_site, run)
    assert (during["status"], during["worker_id"], during["max_retries"]) == ("running", "w", 2)
    assert during["uid"] == found["job"]["uid"]
    end(any_site, found, outputs={"x": "1"})
    after = shown(any_site, run)
    assert (after["status"], after["outputs"], after["output"]) == ("success", {"x": "1"}, '{"x":"1"}')


def test_a_job_that_failed_after_its_decision_is_a_failure(any_site):
    run = begin(any_site)
    end(any_site, claim(any_site), outputs={"go": "yes"})
    decide(any_site)
    end(any_site, claim(any_site), "fail", error="it broke", retryable=False)
    after = shown(any_site, run)
    assert (after["status"], after["error"]) == ("failure", "it broke")


def test_a_job_whose_condition_is_false_is_skipped_without_an_attempt(any_site):
    run = begin(any_site)
    end(any_site, claim(any_site), outputs={"go": "no"})
    decide(any_site)
    after = shown(any_site, run)
    assert (after["status"], after["attempt"], after["max_retries"]) == ("skipped", 0, 2)
    assert "does not hold" in after["error"]


def test_events_of_a_decision_differ_from_those_of_its_job(any_site):
    run = begin(any_site)
    end(any_site, claim(any_site), outputs={"go": "yes"})
    decide(any_site)
    end(any_site, claim(any_site), outputs={"x": "1"})
    events = any_site.get(f"/api/runs/{run}/events").json()
    assert [one["sequence"] for one in events] == list(range(1, len(events) + 1))
    kinds = [one["event"] for one in events if one["job_id"] == "second"]
    assert kinds[:2] == ["deciding", "deciding"]
    assert set(kinds[2:4]) == {"decided", "ready"}  # one transition, in any order
    assert kinds[4:] == ["started", "completed"]
    streamed = any_site.get(f"/api/runs/{run}/events/stream").text
    assert [line.removeprefix("event: ") for line in streamed.splitlines() if line.startswith("event: ")] == [
        *(one["event"] for one in events),
        "end",
    ]


def test_a_log_stream_opened_before_the_decision_follows_the_job(any_site):
    run = begin(any_site)
    end(any_site, claim(any_site), outputs={"go": "yes"})
    with any_site.http.stream("GET", f"/api/workflows/flow/jobs/second/logs/stream?run={run}") as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("retry")
        decide(any_site)
        found = claim(any_site)
        chunk = {"sequence": 0, "data": "hello\n"}
        any_site.post(f"/api/jobs/{found['lease']['lease_id']}/logs", {"chunks": [chunk]})
        end(any_site, found)
        rest = list(lines)
    assert rest[-3:-1] == ["event: end", "data: {}"]
    (log,) = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith('data: {"w')]
    assert (log["job_id"], log["data"], log["sequence"]) == ("second", "hello\n", 0)


@pytest.mark.parametrize(("go", "expected"), [("no", {"skipped": 1}), ("yes", {"completed": 1})])
def test_a_worker_counts_a_decision_by_its_outcome(site, go, expected):
    begin(site)
    end(site, claim(site), outputs={"go": go})
    worker = site.stay.worker(queues=[INTERNAL])
    site.do(worker.run(burst=True))
    assert worker.counts == expected


def test_decisions_are_not_counted_among_the_jobs_of_a_run(any_site):
    run = begin(any_site)
    end(any_site, claim(any_site), outputs={"go": "yes"})
    decide(any_site)
    end(any_site, claim(any_site))
    decide(any_site)
    counts = {"completed": 2, "skipped": 1}
    found = any_site.get(f"/api/runs/{run}").json()
    assert found["counts"] == counts
    assert len(found["jobs"]) == 3
    assert any_site.get("/api/runs").json()[0]["counts"] == counts
