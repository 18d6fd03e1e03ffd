"""A worker that is written from the protocol alone, with strict types, runs workflows and reacts to a cancellation."""

from __future__ import annotations

from backstay.job.reserved import INTERNAL
from backstay.testing.waiting import eventually
from support import foreign_types as types
from support.foreign_worker import ForeignWorker
from support.server.calls import statuses


def job(id_, command, *needs, **more):
    return {"id": id_, "name": id_, "status": "queued", "command": command, "depends_on": list(needs), **more}


def create(site, name, jobs):
    created = site.post("/api/workflows", {"id": name, "name": name, "trigger": "manual", "jobs": jobs})
    assert created.status_code == 201, created.text
    assert site.post(f"/api/workflows/{name}/run").status_code == 202


def wait_ended(site, name):
    def has_ended():
        site.do(site.stay.worker(queues=[INTERNAL]).run(burst=True))  # runs internal jobs, like a scheduler
        return statuses(site, name)[0] not in ("queued", "running")

    assert eventually(has_ended, 100)
    return statuses(site, name)


def test_it_completes_a_dag(any_site, tmp_path):
    flag = tmp_path / "flag"
    fails_once = f"test -e {flag} || {{ touch {flag}; exit 3; }}"
    jobs = [
        job("top", 'echo "::set-output word=hello"; echo done'),
        job("left", "echo left", "top", required_labels=["linux"]),
        job("right", fails_once, "top", max_retries=1),
        job("bottom", "echo bottom", "left", "right"),
    ]
    create(any_site, "diamond", jobs)
    with ForeignWorker(any_site.url, ["linux"]) as worker:
        status, found = wait_ended(any_site, "diamond")
    assert worker.errors == []
    assert (status, set(found.values())) == ("success", {"success"})
    claims = {(one["job"]["job_id"], one["job"]["attempt"]): one["job"] for one in worker.claims}
    assert set(claims) == {("top", 0), ("left", 0), ("right", 0), ("right", 1), ("bottom", 0)}
    assert claims["left", 0]["upstream_outputs"] == {"top": {"word": "hello"}}
    shown = any_site.get("/api/workflows/diamond/jobs/top/logs").text
    log = types.decode(types.many(types.LOG_CHUNK), shown)
    assert [(one["sequence"], one["data"]) for one in log] == [(0, "::set-output word=hello\n"), (1, "done\n")]


def test_it_reports_a_failure_that_skips_the_rest(any_site):
    create(any_site, "broken", [job("bad", "echo no; exit 3"), job("next", "echo next", "bad")])
    with ForeignWorker(any_site.url) as worker:
        assert wait_ended(any_site, "broken") == ("failure", {"bad": "failure", "next": "skipped"})
    assert worker.errors == []
    shown = types.decode(types.WORKFLOW, any_site.get("/api/workflows/broken/status").text)
    assert [one["output"] for one in shown["jobs"]] == ["exit code 3", None]


def test_it_hears_a_cancellation(any_site):
    create(any_site, "long", [job("nap", "exec sleep 300"), job("next", "echo next", "nap")])
    with ForeignWorker(any_site.url) as worker:
        assert eventually(lambda: statuses(any_site, "long")[1]["nap"] == "running", 60)
        assert any_site.post("/api/workflows/long/cancel").status_code == 202
        assert wait_ended(any_site, "long") == ("cancelled", {"nap": "cancelled", "next": "cancelled"})
        create(any_site, "after", [job("a", "echo a")])
        assert wait_ended(any_site, "after") == ("success", {"a": "success"})
    assert worker.errors == []
    assert worker.cancelled == ["nap"]
