"""Server-sent events are live, complete and in order, and resume without a gap or a duplicate."""

from __future__ import annotations

import contextlib
import socket
import threading

import httpx
import pytest

from backstay import current_job
from backstay.server.settings import ServerSettings
from backstay.testing.waiting import WITHIN, eventually
from support.server.calls import create, finish_ci, listening, start
from support.server.site import serving


def post_logs(lease, site, *numbers):
    chunks = [{"data": f"line {n}", "sequence": n, "timestamp_ms": 1000 + n} for n in numbers]
    assert site.post(f"/api/jobs/{lease}/logs", {"chunks": chunks}).status_code == 200


def test_a_log_is_followed_live_to_its_end(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    post_logs(lease, any_site, 0, 1)
    with listening(any_site, f"/api/workflows/-/jobs/{job}/logs/stream") as stream:
        assert next(stream)[2]["data"] == "line 0"
        kind, id_, data = next(stream)
        assert (kind, id_, data["sequence"], data["data"]) == ("log", "1", 1, "line 1")
        post_logs(lease, any_site, 2)
        assert next(stream)[2]["data"] == "line 2"
        any_site.post(f"/api/jobs/{lease}/complete")
        assert next(stream)[0] == "end"
        assert next(stream, None) is None


def test_a_log_is_resumed_without_gap_or_duplicate(any_site):
    job = any_site.enqueue()
    lease = any_site.claim()["lease"]["lease_id"]
    path = f"/api/workflows/-/jobs/{job}/logs/stream"
    post_logs(lease, any_site, *range(10))
    with listening(any_site, path) as stream:
        seen = [next(stream)[1] for _ in range(4)]
    post_logs(lease, any_site, *range(10, 20))
    any_site.post(f"/api/jobs/{lease}/complete")
    with listening(any_site, path, last=seen[-1]) as stream:
        seen += [id_ for kind, id_, _ in stream if kind == "log"]
    assert seen == [str(n) for n in range(20)]


def run_continued_job(site):
    """Run a job that continues twice; return the run's id, its log lines, and the lines after the fourth."""

    async def run_to_end():
        stay = site.stay

        @stay.job()
        async def count_down(*, left: int) -> None:
            for n in range(3):
                current_job().log(f"{left} {n}")
            if left:
                current_job().continue_with(count_down, left=left - 1)

        @stay.workflow
        def countdown(flow):
            flow.add(count_down, left=2, key="speech")

        run = await countdown.start()
        await stay.worker(signals=False).run(burst=True)
        return run.id, [line.data for line in await run.logs("speech")], await run.logs("speech", 4)

    return site.do(run_to_end())


def test_a_continued_job_has_one_log(any_site):
    run, lines, rest = run_continued_job(any_site)
    everything = [f"{left} {n}" for left in (2, 1, 0) for n in range(3)]
    assert lines == everything
    assert [(line.seq, line.data) for line in rest] == [(n + 1, everything[n]) for n in range(4, 9)]
    path = "/api/workflows/countdown/jobs/speech/logs"
    for read in range(10):
        last = {"after": read - 1} if read else {}
        page = any_site.get(path, params={"limit": 2, **last}).json()
        assert [chunk["data"] for chunk in page] == everything[read : read + 2][: max(1, len(page))]
        assert [chunk["sequence"] for chunk in page] == list(range(read, read + len(page)))
        with listening(any_site, f"{path}/stream", last=str(read - 1) if read else None, params={"run": run}) as stream:
            got = list(stream)
        assert [data["data"] for kind, _, data in got if kind == "log"] == everything[read:]
        assert [id_ for kind, id_, _ in got if kind == "log"] == [str(n) for n in range(read, 9)]
        assert got[-1][0] == "end"
        with listening(any_site, f"{path}/stream", params={"run": run, **last}) as stream:
            assert list(stream) == got


def test_a_log_of_many_pages_is_sent_in_order(site):
    job = site.enqueue()
    lease = site.claim()["lease"]["lease_id"]
    for first in range(0, 5000, 1000):
        post_logs(lease, site, *range(first, first + 1000))
    site.post(f"/api/jobs/{lease}/complete")
    with listening(site, f"/api/workflows/-/jobs/{job}/logs/stream") as stream:
        numbers = [data["sequence"] for kind, _, data in stream if kind == "log"]
    assert numbers == list(range(5000))


def test_a_runs_events_are_followed_to_its_end(any_site):
    create(any_site)
    run = start(any_site).json()["run_id"]
    with listening(any_site, f"/api/runs/{run}/events/stream") as stream:
        kind, id_, data = next(stream)
        assert (kind, id_) == ("run_created", "1")
        assert (data["workflow_id"], data["run_id"], data["job_id"]) == ("ci", run, "")
        finish_ci(any_site)
        rest = list(stream)
    kinds = [(kind, data.get("job_id")) for kind, _, data in rest]
    assert ("started", "build") in kinds
    assert ("completed", "publish") in kinds
    assert kinds[-2:] == [("run_finished", ""), ("end", None)]
    numbers = [int(id_) for kind, id_, _ in rest if kind != "end"]
    assert numbers == list(range(2, 2 + len(numbers)))
    followed = any_site.get(f"/api/runs/{run}/events", headers={"accept": "text/event-stream"})
    assert followed.headers["content-type"] == "text/event-stream"
    assert followed.text.count("\nevent: ") == len(numbers) + 2
    page = any_site.get(f"/api/runs/{run}/events", params={"after": 2}).json()
    assert [one["sequence"] for one in page] == list(range(3, 2 + len(numbers)))


def test_the_event_stream_resumes_in_the_middle_of_a_page(any_site):
    create(any_site)
    start(any_site)
    finish_ci(any_site)
    with listening(any_site, "/api/events", params={"after": "0"}) as stream:
        received = []
        while not received or received[-1][0] != "run_finished":
            received.append(next(stream))
    positions = [(data["run_id"], data["sequence"]) for _, _, data in received]
    assert len(set(positions)) == len(positions)
    for cut in range(len(received)):
        seen = positions[: cut + 1]
        with listening(any_site, "/api/events", last=received[cut][1]) as stream:
            while len(seen) < len(positions):
                _, _, data = next(stream)
                seen.append((data["run_id"], data["sequence"]))
        assert seen == positions


def test_the_event_stream_starts_at_the_present_by_default(any_site):
    create(any_site)
    old = start(any_site).json()["run_id"]
    with listening(any_site, "/api/events") as stream:
        assert eventually(lambda: any_site.server.waiting == 1)
        new = start(any_site).json()["run_id"]
        _, _, data = next(stream)
        assert data["run_id"] == new != old


def test_an_invalid_stream_position_is_refused(site):
    for after in ("x", "!!!", "AAAA", "ka" * 50):
        assert site.get("/api/events", params={"after": after}).status_code == 400
    job = site.enqueue()
    path = f"/api/workflows/-/jobs/{job}/logs/stream"
    assert site.get(path, headers={"last-event-id": "x"}).status_code == 400


def test_an_idle_stream_sends_keep_alives(tmp_path):
    settings = ServerSettings(access_log=False, stream_keepalive=0.2)
    url = f"sqlite:///{tmp_path / 'backstay.db'}"
    with serving(url, settings=settings) as site, listening(site, "/api/events") as stream:
        assert next(stream) == (":", "", ": keep-alive")
        assert next(stream) == (":", "", ": keep-alive")


def test_streams_and_long_polls_end_when_the_server_stops(tmp_path):
    ended = []
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}") as site:
        lock = site.post("/api/locks/a/acquire", {"lock_id": "m"})
        assert lock.status_code == 200

        def listen():
            with listening(site, "/api/events") as stream:
                ended.append(list(stream)[-1][2])

        def claim():
            with httpx.Client(timeout=60) as client:
                body = {"worker_id": "w", "wait_secs": 50}
                ended.append(client.post(site.url + "/api/jobs/claim", json=body).json())

        def acquire():
            with httpx.Client(timeout=60) as client:
                body = {"request_id": "r", "poll_seconds": 50}
                ended.append(client.post(site.url + "/api/locks/a/acquire", json=body).status_code)

        threads = [threading.Thread(target=call) for call in (listen, claim, acquire)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: site.server.waiting == 3)
    for thread in threads:
        thread.join(WITHIN)
        assert not thread.is_alive()
    assert sorted(map(str, ended)) == sorted([": the server is stopping; reconnect", "None", "202"])


def test_a_disconnected_client_leaves_no_waiting_claim(site):
    with contextlib.suppress(httpx.ReadTimeout), httpx.Client(timeout=0.3) as client:
        client.post(site.url + "/api/jobs/claim", json={"worker_id": "w", "queues": ["default"], "wait_secs": 50})
    assert eventually(lambda: site.server.waiting == 0)
    job = site.enqueue()
    assert site.claim("other")["job"]["uid"] == job


@pytest.mark.timed
def test_a_stalled_stream_reader_is_disconnected(tmp_path):
    settings = ServerSettings(access_log=False, stream_timeout=0.5)
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}", settings=settings) as site:
        job = site.enqueue()
        lease = site.claim()["lease"]["lease_id"]
        chunks = [{"data": "x" * 60_000, "sequence": n} for n in range(100)]
        for first in range(0, 100, 10):
            batch = {"chunks": chunks[first : first + 10]}
            assert site.post(f"/api/jobs/{lease}/logs", batch).status_code == 200
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", site.port))
            path = f"/api/workflows/-/jobs/{job}/logs/stream"
            sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert eventually(lambda: site.server.waiting == 1)
            assert eventually(lambda: site.server.waiting == 0)


def test_too_many_streams_are_refused(tmp_path):
    settings = ServerSettings(access_log=False, max_waiting=1)
    url = f"sqlite:///{tmp_path / 'backstay.db'}"
    with serving(url, settings=settings) as site, listening(site, "/api/events"):
        assert eventually(lambda: site.server.waiting == 1)
        response = site.get("/api/events")
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert site.get("/api/queues").status_code == 200
