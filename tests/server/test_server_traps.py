"""Known failure modes of workflow backends, tested through the HTTP API."""

from __future__ import annotations

from backstay.testing.waiting import eventually
from support.server.calls import command, create, finish, listening, start, statuses
from support.server.site import serving

ODD = {"text": "größe\u2028\x00", "none": None, "empty": [{}, []], "large": 2**63 - 1, "small": -0.5, "yes": True}
ONE = """\
name: one
jobs:
  first: {run: echo first}
  then: {needs: first, run: echo then}
  notify: {needs: then, if: failure(), run: echo notify}
"""


def events(site, run):
    return [(one["event"], one["job_id"]) for one in site.get(f"/api/runs/{run}/events").json()]


def test_a_claim_looks_past_jobs_with_other_labels_at_the_head(any_site):
    for _ in range(50):
        any_site.enqueue(labels=["gpu"], priority=9)
    mine = any_site.enqueue()
    assert any_site.claim()["job"]["uid"] == mine
    assert any_site.claim() is None


def test_cancelled_jobs_at_the_head_hide_no_other_job(any_site):
    gone = [any_site.enqueue(priority=9) for _ in range(20)]
    mine = any_site.enqueue()
    for job in gone:
        assert any_site.post(f"/api/jobs/{job}/cancel").json()["status"] == "cancelled"
    assert any_site.claim()["job"]["uid"] == mine


def test_retries_keep_a_jobs_arguments_and_labels(any_site):
    job = any_site.enqueue(args=ODD, labels=["日本"], retries=5)
    for attempt in (0, 1, 2):
        found = any_site.claim(labels=["日本", "other"], wait_secs=20)
        assert (found["job"]["uid"], found["job"]["attempt"], found["job"]["args"]) == (job, attempt, ODD)
        assert found["job"]["required_labels"] == ["日本"]
        assert any_site.post(f"/api/jobs/{found['lease']['lease_id']}/fail").json()["status"] == "queued"


def test_a_job_whose_arguments_json_cannot_hold_is_claimed_or_failed(any_site):
    async def enqueue():
        @any_site.stay.job(retries=3)
        async def blob(raw: bytes) -> None: ...

        return (await blob.enqueue(b"\xff\x00")).id

    job = any_site.do(enqueue())
    mine = any_site.enqueue()
    seen = {found["job"]["uid"] for found in (any_site.claim(), any_site.claim()) if found}
    assert mine in seen
    shown = any_site.get(f"/api/jobs/{job}").json()
    assert job in seen or shown["status"] == "failure"


def test_a_renewal_without_ownership_is_refused(any_site):
    job = any_site.enqueue(retries=1)
    lease = any_site.claim(lease_ttl_secs=1)["lease"]["lease_id"]
    own, _, fence = lease.rpartition(".")
    for wrong in (f"{own}.{int(fence) + 1}", f"{own}.{int(fence) - 1}", f"{own}.0"):
        assert any_site.post(f"/api/jobs/{wrong}/heartbeat", {"ttl_secs": 60}).status_code == 409
    other = any_site.claim("w2", wait_secs=20)
    assert (other["job"]["uid"], other["job"]["attempt"]) == (job, 1)
    assert any_site.post(f"/api/jobs/{lease}/heartbeat", {"ttl_secs": 60}).status_code == 409
    assert any_site.post(f"/api/jobs/{other['lease']['lease_id']}/heartbeat").status_code == 200


def test_a_crashed_worker_without_retries_fails_the_run(any_site):
    create(any_site, ONE)
    run = start(any_site, "one").json()["run_id"]
    crashed = command(any_site, lease_ttl_secs=1)
    notify = command(any_site, "w2", wait_secs=20)
    assert notify["job"]["job_id"] == "notify"
    finish(any_site, notify)
    assert statuses(any_site, "one") == ("failure", {"first": "failure", "then": "skipped", "notify": "success"})
    recorded = events(any_site, run)
    assert recorded.count(("lease_expired", "first")) == recorded.count(("failed", "first")) == 1
    assert recorded.index(("failed", "first")) < recorded.index(("skipped", "then"))
    assert recorded[-1] == ("run_finished", "")
    assert finish(any_site, crashed).status_code == 409
    assert events(any_site, run) == recorded


def test_a_cancel_flag_does_not_outlive_its_run(any_site):
    create(any_site, ONE)
    first = start(any_site, "one").json()["run_id"]
    lease = command(any_site)["lease"]["lease_id"]
    any_site.post(f"/api/runs/{first}/cancel")
    second = start(any_site, "one").json()["run_id"]
    job = command(any_site)
    assert job["job"]["run_id"] == second
    assert any_site.post(f"/api/jobs/{lease}/heartbeat").json() == {"cancelled": True}
    assert any_site.post(f"/api/jobs/{job['lease']['lease_id']}/heartbeat").json() == {"cancelled": False}
    any_site.post(f"/api/jobs/{lease}/fail", {"retryable": False})
    finish(any_site, job)
    finish(any_site, command(any_site))
    assert statuses(any_site, "one", run=second)[0] == "success"
    assert statuses(any_site, "one", run=first)[0] == "cancelled"


def test_a_late_failure_does_not_requeue_a_cancelled_job(any_site):
    create(any_site, ONE.replace("{run: echo first}", "{run: echo first, retries: 5}"))
    run = start(any_site, "one").json()["run_id"]
    lease = command(any_site, lease_ttl_secs=2)["lease"]["lease_id"]
    any_site.post(f"/api/runs/{run}/cancel")
    late = any_site.post(f"/api/jobs/{lease}/fail", {"error": "late", "retryable": True})
    assert late.json()["status"] == "cancelled"
    assert statuses(any_site, "one") == (
        "cancelled",
        {"first": "cancelled", "then": "cancelled", "notify": "cancelled"},
    )
    assert any_site.post(f"/api/jobs/{lease}/fail", {"error": "later"}).json()["status"] == "cancelled"
    assert command(any_site, wait_secs=1) is None
    assert statuses(any_site, "one")[0] == "cancelled"


def test_a_lost_notification_loses_no_outcome(shared_url, namespace):
    """A server without hub notifications still sends all events."""
    with serving(shared_url, namespace=namespace) as site, serving(shared_url, namespace=namespace) as unnotified:
        create(site, ONE)
        run = start(site, "one").json()["run_id"]
        unnotified.do(_close_notifier(unnotified.server))
        with listening(unnotified, f"/api/runs/{run}/events/stream") as stream:
            assert next(stream)[0] == "run_created"
            finish(site, command(site))
            finish(unnotified, command(unnotified, wait_secs=20))
            recorded = [kind for kind, _, _ in stream]
        assert recorded[-2:] == ["run_finished", "end"]
        assert statuses(unnotified, "one")[0] == "success"


async def _close_notifier(server):
    server.notifier.close()


def test_a_result_posted_twice_is_used_once(any_site):
    create(any_site)
    run = start(any_site).json()["run_id"]
    build = command(any_site)
    first = finish(any_site, build, file="a").json()
    test = command(any_site, labels=["linux"])
    assert finish(any_site, build, file="b").json() == first
    any_site.server.claims._replies.clear()
    assert finish(any_site, build, file="c").json() == first
    assert any_site.post(f"/api/jobs/{build['lease']['lease_id']}/fail").status_code == 409
    assert events(any_site, run).count(("completed", "build")) == 1
    assert events(any_site, run).count(("ready", "test")) == 1
    assert test["job"]["upstream_outputs"]["build"]["file"] == "a"
    assert any_site.get("/api/workflows/ci/jobs/build/artifacts").json()["outputs"]["file"] == "a"
    assert eventually(lambda: command(any_site, labels=["linux"]) is None)
