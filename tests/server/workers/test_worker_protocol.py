"""The HTTP worker protocol: claims, leases, logs, artifacts and outcomes, on every engine."""

from __future__ import annotations

import threading

from backstay.server.settings import ServerSettings
from backstay.testing.waiting import eventually
from support.server.site import serving


def status_of(site, job):
    return site.get(f"/api/jobs/{job}").json()["status"]


def test_a_claimed_job_has_the_fields_of_the_worker_protocol(any_site):
    job = any_site.enqueue("resize", {"path": "a.png"}, labels=["gpu"], retries=2)
    assert any_site.claim(labels=["cpu"]) is None
    found = any_site.claim(labels=["gpu", "linux"])
    assert found["job"]["job_id"] == found["job"]["uid"] == job
    assert found["job"]["workflow_id"] == "-"
    assert found["job"]["command"] == ""
    assert found["job"]["args"] == {"path": "a.png"}
    assert found["job"]["required_labels"] == ["gpu"]
    assert found["job"]["attempt"] == 0
    assert found["job"]["upstream_outputs"] == {}
    assert found["job"]["retry_policy"] == {
        "max_retries": 2,
        "backoff": {"Exponential": {"base_secs": 1, "max_secs": 300, "base_ms": 1000, "max_ms": 300_000}},
    }
    assert found["job"]["enqueued_at_ms"] <= found["lease"]["granted_at_ms"] + 1000
    assert found["lease"]["job_id"] == job
    assert found["lease"]["worker_id"] == "w1"
    assert (found["lease"]["ttl_secs"], found["lease"]["ttl_ms"]) == (30, 30_000)
    assert status_of(any_site, job) == "running"


def test_each_job_is_claimed_by_one_worker(any_site):
    jobs = {any_site.enqueue() for _ in range(20)}
    got = []

    def work(name):
        while (found := any_site.claim(name)) is not None:
            got.append(found["job"]["uid"])

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == sorted(jobs)


def test_a_repeated_completion_gets_the_same_response(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    first = any_site.post(f"/api/jobs/{lease}/complete", {"outputs": {"wheel": "a.whl"}})
    again = any_site.post(f"/api/jobs/{lease}/complete", {"outputs": {"wheel": "other"}})
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json() == {"lease_id": lease, "job_id": job, "status": "success"}
    assert any_site.get(f"/api/jobs/{job}").json()["result"] == {"wheel": "a.whl"}
    assert any_site.get(f"/api/workflows/-/jobs/{job}/artifacts").json()["outputs"] == {"wheel": "a.whl"}


def test_a_server_that_forgot_a_lease_answers_a_repeated_completion_from_the_store(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    first = any_site.post(f"/api/jobs/{lease}/complete").json()
    any_site.server.claims._replies.clear()
    any_site.server.claims._leases.clear()
    assert any_site.post(f"/api/jobs/{lease}/complete").json() == first
    assert any_site.post(f"/api/jobs/{lease}/fail").status_code == 409
    assert status_of(any_site, job) == "success"


def test_a_repeated_failure_gets_the_same_response_and_counts_once(any_site):
    job = any_site.enqueue(retries=3)
    lease = any_site.claim()["lease"]["lease_id"]
    first = any_site.post(f"/api/jobs/{lease}/fail", {"error": "disk full"}).json()
    assert first["status"] == "queued"
    assert any_site.post(f"/api/jobs/{lease}/fail", {"error": "disk full"}).json() == first
    any_site.server.claims._replies.clear()
    assert any_site.post(f"/api/jobs/{lease}/fail", {"error": "disk full"}).json() == first
    found = any_site.get(f"/api/jobs/{job}").json()
    assert found["error"]["message"] == "disk full"
    assert found["state"] == "scheduled"
    assert any_site.post(f"/api/jobs/{lease}/complete").status_code == 409


def test_a_failure_that_is_not_retryable_is_a_dead_letter(any_site):
    job = any_site.enqueue(retries=3)
    lease = any_site.claim()["lease"]["lease_id"]
    assert any_site.post(f"/api/jobs/{lease}/fail", {"retryable": False}).json()["status"] == "failure"
    assert [dead["id"] for dead in any_site.get("/api/jobs/dead").json()] == [job]
    assert any_site.post("/api/jobs/dead/retry").json() == {"count": 1}
    assert any_site.claim()["job"]["uid"] == job


def test_an_unknown_lease_is_refused_like_an_ended_one(any_site):
    for lease in ("nonsense", "0-00.1", "0-00000000000000000000000000ff.17", "zz-1.2", "0-1.x", ".5", "-1-a.1"):
        for verb, body in (
            ("heartbeat", {}),
            ("complete", {}),
            ("fail", {}),
            ("release", {}),
            ("logs", {"chunks": []}),
        ):
            response = any_site.post(f"/api/jobs/{lease}/{verb}", body)
            if verb == "logs" and lease in ("0-00.1", "0-00000000000000000000000000ff.17"):
                response = any_site.post(f"/api/jobs/{lease}/{verb}", {"chunks": [{"data": "x"}]})
            assert response.status_code == 409, (lease, verb, response.text)
            assert response.headers["content-type"] == "application/problem+json"


def test_an_expired_lease_is_refused_and_its_job_is_claimed_again(any_site):
    job = any_site.enqueue(retries=1)
    lease = any_site.claim(lease_ttl_secs=1)["lease"]["lease_id"]
    other = any_site.claim("w2", wait_secs=20)
    assert other["job"]["uid"] == job
    assert other["job"]["attempt"] == 1
    for verb in ("heartbeat", "complete", "fail"):
        assert any_site.post(f"/api/jobs/{lease}/{verb}").status_code == 409
    assert any_site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": "late"}]}).status_code == 409
    assert any_site.post(f"/api/jobs/{other['lease']['lease_id']}/complete").status_code == 200
    assert any_site.get(f"/api/workflows/-/jobs/{job}/logs").json() == []


def test_a_heartbeat_extends_a_lease_and_reports_a_cancellation(any_site):
    job = any_site.enqueue()
    lease = any_site.claim(lease_ttl_secs=1)["lease"]["lease_id"]
    before = any_site.do(any_site.stay.jobs.get(job)).lease_until
    beat = any_site.post(f"/api/jobs/{lease}/heartbeat", {"ttl_secs": 60, "progress": 0.5})
    assert beat.json() == {"cancelled": False}
    after = any_site.do(any_site.stay.jobs.get(job))
    assert (after.lease_until - before).total_seconds() > 30
    assert after.progress == 0.5
    assert any_site.get(f"/api/jobs/-/{job}/cancelled").text == "false"
    assert any_site.post(f"/api/jobs/{job}/cancel", {"reason": "enough"}).json()["status"] == "running"
    assert any_site.post(f"/api/jobs/{lease}/heartbeat").json() == {"cancelled": True}
    assert any_site.get(f"/api/jobs/-/{job}/cancelled").text == "true"
    assert any_site.post(f"/api/jobs/{lease}/fail", {"error": "stopped"}).json()["status"] == "cancelled"


def test_a_released_job_uses_up_no_attempt(any_site):
    any_site.enqueue(retries=0)
    lease = any_site.claim()["lease"]["lease_id"]
    assert any_site.post(f"/api/jobs/{lease}/release").json()["status"] == "queued"
    assert any_site.claim("w2")["job"]["attempt"] == 0


def test_a_waiting_claim_gets_a_job_enqueued_later(any_site):
    found = []
    waiting = threading.Thread(target=lambda: found.append(any_site.claim(wait_secs=20)))
    waiting.start()
    assert eventually(lambda: any_site.server.waiting == 1)
    job = any_site.enqueue()
    waiting.join(30)
    assert found[0]["job"]["uid"] == job
    assert any_site.server.waiting == 0


def test_each_job_wakes_one_of_the_waiting_claims(any_site):
    found = []

    def wait(name):
        while (got := any_site.claim(name, wait_secs=20)) is not None and len(found) < 4:
            found.append((name, got["job"]["uid"]))
            return

    threads = [threading.Thread(target=wait, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: any_site.server.waiting == 4)
    jobs = [any_site.enqueue() for _ in range(4)]
    for thread in threads:
        thread.join(30)
    assert sorted(job for _, job in found) == sorted(jobs)


def test_logs_are_kept_in_order_and_once(any_site):
    job = any_site.enqueue(retries=1)
    lease = any_site.claim()["lease"]["lease_id"]
    first = [{"data": f"line {n}", "sequence": n, "timestamp_ms": 1000 + n} for n in range(5)]
    assert any_site.post(f"/api/jobs/{lease}/logs", {"chunks": first}).json() == {"accepted": 5}
    assert any_site.post(f"/api/jobs/{lease}/logs", {"chunks": first}).json() == {"accepted": 5}
    later = [{"data": "oops", "sequence": 5, "timestamp_ms": 2000, "stream": "stderr"}]
    any_site.post(f"/api/jobs/{lease}/logs", {"chunks": [*first[3:], *later]})
    any_site.post(f"/api/jobs/{lease}/fail")
    any_site.post(f"/api/jobs/{job}/retry")
    second = any_site.claim()["lease"]["lease_id"]
    any_site.post(f"/api/jobs/{second}/logs", {"chunks": [{"data": "again", "sequence": 0, "timestamp_ms": 3000}]})
    chunks = any_site.get(f"/api/workflows/-/jobs/{job}/logs").json()
    assert [chunk["data"] for chunk in chunks] == [*(f"line {n}" for n in range(5)), "oops", "again"]
    assert [chunk["sequence"] for chunk in chunks] == list(range(7))
    assert chunks[5]["stream"] == "stderr"
    assert chunks[5]["timestamp_ms"] == 2000
    assert {chunk["job_id"] for chunk in chunks} == {job}
    page = any_site.get(f"/api/workflows/-/jobs/{job}/logs", params={"after": 4, "limit": 2}).json()
    assert [chunk["sequence"] for chunk in page] == [5, 6]
    first = any_site.get(f"/api/workflows/-/jobs/{job}/logs", params={"after": 0, "limit": 1}).json()
    assert [chunk["sequence"] for chunk in first] == [1]


def test_a_log_batch_resent_to_a_restarted_server_is_stored_once(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    batch = {"chunks": [{"data": f"{n}", "sequence": n, "timestamp_ms": 1000 + n} for n in range(3)]}
    any_site.post(f"/api/jobs/{lease}/logs", batch)
    any_site.server.job_logs._numberings.clear()  # like a server that has just started
    any_site.post(f"/api/jobs/{lease}/logs", batch)
    any_site.server.job_logs._numberings.clear()
    any_site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": "3", "sequence": 3, "timestamp_ms": 1003}]})
    chunks = any_site.get(f"/api/workflows/-/jobs/{job}/logs").json()
    assert [chunk["data"] for chunk in chunks] == ["0", "1", "2", "3"]


def test_chunks_without_numbers_are_appended(site):
    job = site.enqueue()
    lease = site.claim()["lease"]["lease_id"]
    for n in range(3):
        site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": f"{n}a"}, {"data": f"{n}b"}]})
    chunks = site.get(f"/api/workflows/-/jobs/{job}/logs").json()
    assert [chunk["data"] for chunk in chunks] == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_only_the_current_lease_uploads_artifacts(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    content = bytes(range(256)) * 3000
    put = any_site.http.put(f"/api/jobs/{lease}/artifacts/report.bin", content=content)
    assert put.status_code == 200, put.text
    assert put.json()["size"] == len(content)
    assert any_site.http.put(f"/api/jobs/{lease}/artifacts/empty", content=b"").json()["size"] == 0
    listed = any_site.get(f"/api/workflows/-/jobs/{job}/artifacts").json()["files"]
    assert [one["name"] for one in listed] == ["empty", "report.bin"]
    got = any_site.get(f"/api/workflows/-/jobs/{job}/artifacts/report.bin")
    assert got.content == content
    assert got.headers["content-disposition"] == "attachment"
    any_site.post(f"/api/jobs/{lease}/complete")
    assert any_site.http.put(f"/api/jobs/{lease}/artifacts/late", content=b"x").status_code == 409
    assert any_site.get(f"/api/workflows/-/jobs/{job}/artifacts/none").status_code == 404


def test_an_artifact_name_outside_its_directory_is_refused(site):
    site.enqueue()
    lease = site.claim()["lease"]["lease_id"]
    for name in ("..%2Fa", "%2Fetc%2Fpasswd", "a%2F..%2F..%2Fb", "a%5Cb", "a%0Ab", "."):
        assert site.http.put(f"/api/jobs/{lease}/artifacts/{name}", content=b"x").status_code in (404, 422), name
    assert site.http.put(f"/api/jobs/{lease}/artifacts/a%2Fb.txt", content=b"x").json()["name"] == "a/b.txt"


def test_artifacts_can_be_stored_in_a_shared_directory(tmp_path):
    url, directory = f"sqlite:///{tmp_path / 'backstay.db'}", tmp_path / "directory"
    with (
        serving(url, settings=ServerSettings(access_log=False, artifacts=str(directory))) as site,
        serving(url) as other,
    ):
        job = site.enqueue()
        lease = site.claim()["lease"]["lease_id"]
        assert site.http.put(f"/api/jobs/{lease}/artifacts/a.bin", content=b"bytes").status_code == 200
        assert [path.read_bytes() for path in directory.rglob("*") if path.is_file()] == [b"bytes"]
        assert site.get(f"/api/workflows/-/jobs/{job}/artifacts/a.bin").content == b"bytes"
        refused = other.get(f"/api/workflows/-/jobs/{job}/artifacts/a.bin")
        assert refused.status_code == 404
        assert "--artifacts" in refused.json()["detail"]


def test_workers_register_heartbeat_and_unregister(any_site):
    registered = any_site.post("/api/workers/register", {"worker_id": "w1", "labels": ["gpu"]}).json()
    assert registered["worker_id"] == "w1"
    assert registered["labels"] == ["gpu"]
    assert registered["status"] == "idle"
    assert registered["current_job"] is None
    assert any_site.post("/api/workers/w1/heartbeat").json()["last_heartbeat_ms"] >= registered["registered_at_ms"]
    assert any_site.post("/api/workers/w2/heartbeat").status_code == 404
    job = any_site.enqueue()
    any_site.claim("w1")
    (found,) = any_site.get("/api/workers").json()
    assert (found["status"], found["current_job"]) == ("busy", job)
    assert any_site.http.delete("/api/workers/w1").status_code == 204
    assert any_site.http.delete("/api/workers/w1").status_code == 404


def test_the_internal_queue_is_refused_to_http_workers(site):
    response = site.post("/api/jobs/claim", {"worker_id": "w", "queues": ["backstay"]})
    assert response.status_code == 422
    assert site.post("/api/jobs", {"type": "backstay.command"}).status_code == 422


def test_a_lease_keeps_its_ttl_at_another_server(any_site):
    any_site.enqueue()
    found = any_site.claim(lease_ttl_secs=300)
    lease = found["lease"]["lease_id"]
    job, millis, _, fence = lease.split(".")
    assert (job, millis) == (found["job"]["uid"], "300000")
    any_site.server.claims._leases.clear()  # like a server that did not grant this lease
    assert any_site.post(f"/api/jobs/{lease}/heartbeat").json() == {"cancelled": False}
    assert any_site.server.claims._leases[f"{job}.{fence}"].ttl == 300_000_000
    assert any_site.post(f"/api/jobs/{lease}/complete").json()["lease_id"] == lease


def test_a_malformed_lease_id_is_refused(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    fence = lease.rpartition(".")[2]
    for wrong in (f"{job}.0.{fence}", f"{job}.99999999999.{fence}", f"{job}.x.{fence}", f"{job}.1000.2000.{fence}"):
        assert any_site.post(f"/api/jobs/{wrong}/heartbeat").status_code == 409
    for wrong in (f"{job}.{10**30}", f"{job}.-1", f"{job}.", ".1"):
        assert any_site.post(f"/api/jobs/{wrong}/complete").status_code in (404, 409)
    assert status_of(any_site, job) == "running"


def test_a_failure_can_set_its_retry_delay(any_site):
    job = any_site.enqueue(retries=1)
    lease = any_site.claim()["lease"]["lease_id"]
    before = any_site.get(f"/api/jobs/{job}").json()["due_at_ms"]
    any_site.post(f"/api/jobs/{lease}/fail", {"error": "busy", "delay_secs": 3600})
    assert any_site.get(f"/api/jobs/{job}").json()["due_at_ms"] - before >= 3_600_000


def test_a_job_released_with_a_delay_uses_up_no_attempt(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    first = any_site.post(f"/api/jobs/{lease}/release", {"delay_secs": 3600})
    assert first.json()["status"] == "queued"
    assert any_site.post(f"/api/jobs/{lease}/release", {"delay_secs": 3600}).json() == first.json()
    shown = any_site.get(f"/api/jobs/{job}").json()
    assert (shown["state"], shown["attempt"]) == ("scheduled", 0)
    assert any_site.claim() is None


def test_a_worker_may_cancel_its_job(any_site):
    job = any_site.enqueue(retries=3)
    lease = any_site.claim()["lease"]["lease_id"]
    response = any_site.post(f"/api/jobs/{lease}/fail", {"error": "nothing to do", "cancelled": True})
    assert response.json()["status"] == "cancelled"
    any_site.server.claims._replies.clear()
    assert any_site.post(f"/api/jobs/{lease}/fail", {"cancelled": True}).json()["status"] == "cancelled"
    assert any_site.get(f"/api/jobs/{job}").json()["error"]["message"] == "nothing to do"
    assert any_site.get("/api/jobs/dead").json() == []
