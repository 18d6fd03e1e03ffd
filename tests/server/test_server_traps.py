"""The traps that backends of workflows fall into, each with its name, as HTTP workers and readers meet them."""

from __future__ import annotations

from site_of_tests import serving
from test_server_streams import listening
from test_server_workflows import command, create, finish, start, statuses

from backstay.testing.waiting import eventually

ODD = {"text": "größe\u2028\x00", "none": None, "empty": [{}, []], "large": 2**63 - 1, "small": -0.5, "yes": True}
ONE = """\
name: one
jobs:
  first: {run: echo first}
  then: {needs: first, run: echo then}
  tell: {needs: then, if: failure(), run: echo tell}
"""


def events(site, run):
    return [(one["event"], one["job_id"]) for one in site.get(f"/api/runs/{run}/events").json()]


def test_a_claim_does_not_look_at_the_head_only(any_site):
    for _ in range(50):
        any_site.enqueue(labels=["gpu"], priority=9)
    mine = any_site.enqueue()
    assert any_site.claim()["job"]["uid"] == mine
    assert any_site.claim() is None


def test_a_stale_head_entry_hides_no_work(any_site):
    gone = [any_site.enqueue(priority=9) for _ in range(20)]
    mine = any_site.enqueue()
    for job in gone:
        assert any_site.post(f"/api/jobs/{job}/cancel").json()["status"] == "cancelled"
    assert any_site.claim()["job"]["uid"] == mine


def test_re_encoding_loses_no_job_that_left_pending(any_site):
    job = any_site.enqueue(args=ODD, labels=["日本"], retries=5)
    for attempt in (1, 2, 3):
        found = any_site.claim(labels=["日本", "other"], wait_secs=20)
        assert (found["job"]["uid"], found["job"]["attempt"], found["job"]["args"]) == (job, attempt, ODD)
        assert found["job"]["required_labels"] == ["日本"]
        assert any_site.post(f"/api/jobs/{found['lease']['lease_id']}/fail").json()["status"] == "queued"


def test_a_job_that_cannot_be_told_in_json_is_failed_and_not_lost(any_site):
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
    for stranger in (f"{own}.{int(fence) + 1}", f"{own}.{int(fence) - 1}", f"{own}.0"):
        assert any_site.post(f"/api/jobs/{stranger}/heartbeat", {"ttl_secs": 60}).status_code == 409
    other = any_site.claim("w2", wait_secs=20)
    assert (other["job"]["uid"], other["job"]["attempt"]) == (job, 2)
    assert any_site.post(f"/api/jobs/{lease}/heartbeat", {"ttl_secs": 60}).status_code == 409
    assert any_site.post(f"/api/jobs/{other['lease']['lease_id']}/heartbeat").status_code == 200


def test_reaping_is_finished_a_worker_that_crashed_without_retries_ends_the_run_as_a_failure(any_site):
    create(any_site, ONE)
    run = start(any_site, "one").json()["run_id"]
    crashed = command(any_site, lease_ttl_secs=1)
    tell = command(any_site, "w2", wait_secs=20)
    assert tell["job"]["job_id"] == "tell"
    finish(any_site, tell)
    assert statuses(any_site, "one") == ("failure", {"first": "failure", "then": "skipped", "tell": "success"})
    told = events(any_site, run)
    assert told.count(("lease_expired", "first")) == told.count(("failed", "first")) == 1
    assert told.index(("failed", "first")) < told.index(("skipped", "then"))
    assert told[-1] == ("run_finished", "")
    assert finish(any_site, crashed).status_code == 409
    assert events(any_site, run) == told


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


def test_cancelled_work_is_not_resurrected_by_its_own_late_failure(any_site):
    create(any_site, ONE.replace("{run: echo first}", "{run: echo first, retries: 5}"))
    run = start(any_site, "one").json()["run_id"]
    lease = command(any_site, lease_ttl_secs=2)["lease"]["lease_id"]
    any_site.post(f"/api/runs/{run}/cancel")
    late = any_site.post(f"/api/jobs/{lease}/fail", {"error": "late", "retryable": True})
    assert late.json()["status"] == "cancelled"
    assert statuses(any_site, "one") == ("cancelled", {"first": "cancelled", "then": "cancelled", "tell": "cancelled"})
    assert any_site.post(f"/api/jobs/{lease}/fail", {"error": "later"}).json()["status"] == "cancelled"
    assert command(any_site, wait_secs=1) is None
    assert statuses(any_site, "one")[0] == "cancelled"


def test_a_lost_message_loses_no_outcome(shared_url, namespace):
    """A server that hears nothing from the hub finds what happened all the same."""
    with serving(shared_url, namespace=namespace) as site, serving(shared_url, namespace=namespace) as deaf:
        create(site, ONE)
        run = start(site, "one").json()["run_id"]
        deaf.do(_go_deaf(deaf.server))
        with listening(deaf, f"/api/runs/{run}/events/stream") as stream:
            assert next(stream)[0] == "run_created"
            finish(site, command(site))
            finish(deaf, command(deaf, wait_secs=20))
            told = [kind for kind, _, _ in stream]
        assert told[-2:] == ["run_finished", "end"]
        assert statuses(deaf, "one")[0] == "success"


async def _go_deaf(server):
    server.ears.close()


def test_results_that_are_posted_twice_are_used_once(any_site):
    create(any_site)
    run = start(any_site).json()["run_id"]
    build = command(any_site)
    first = finish(any_site, build, file="a").json()
    test = command(any_site, labels=["linux"])
    assert finish(any_site, build, file="b").json() == first
    any_site.server.claims._answers.clear()
    assert finish(any_site, build, file="c").json() == first
    assert any_site.post(f"/api/jobs/{build['lease']['lease_id']}/fail").status_code == 409
    assert events(any_site, run).count(("completed", "build")) == 1
    assert events(any_site, run).count(("ready", "test")) == 1
    assert test["job"]["upstream_outputs"]["build"]["file"] == "a"
    assert any_site.get("/api/workflows/ci/jobs/build/artifacts").json()["outputs"]["file"] == "a"
    assert eventually(lambda: command(any_site, labels=["linux"]) is None)
