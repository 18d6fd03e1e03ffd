"""Calls of a server's HTTP API: workflows, runs, job claims and completions, event streams."""

from __future__ import annotations

import contextlib
import json

import httpx

CI = """\
name: ci
on: push
inputs:
  version: {default: "1.0"}
jobs:
  build:
    run: echo build ${{ inputs.version }}
    outputs: {wheel: "${{ outputs.file }}.whl"}
  test:
    needs: build
    labels: [linux]
    retries: 1
    run: echo test
  publish:
    needs: [test]
    run: echo publish
"""


def create(site, text=CI, kind="application/yaml"):
    return site.http.post("/api/workflows", content=text, headers={"content-type": kind})


def start(site, name="ci", **body):
    return site.post(f"/api/workflows/{name}/run", body)


def finish(site, found, **outputs):
    return site.post(f"/api/jobs/{found['lease']['lease_id']}/complete", {"outputs": outputs})


def command(site, worker="w1", **options):
    """Claim the next command job, as an HTTP worker that names no queue."""
    return site.post("/api/jobs/claim", {"worker_id": worker, **options}).json()


def statuses(site, name="ci", **query):
    shown = site.get(f"/api/workflows/{name}/status", params=query).json()
    return shown["status"], {job["id"]: job["status"] for job in shown["jobs"]}


@contextlib.contextmanager
def listening(site, path, *, last=None, params=None):
    """Open an event stream. Yields an iterator of events (kind, id, data); a comment is (":", "", text)."""
    headers = {"last-event-id": last} if last else {}
    with (
        httpx.Client(timeout=30) as client,
        client.stream("GET", site.url + path, headers=headers, params=params) as got,
    ):
        assert got.status_code == 200, got.read()
        assert got.headers["content-type"] == "text/event-stream"
        yield events(got.iter_lines())


def events(lines):
    kind = id_ = data = ""
    for line in lines:
        if line.startswith(":"):
            yield ":", "", line
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("id: "):
            id_ = line[4:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and kind:
            yield kind, id_, json.loads(data)
            kind = id_ = data = ""


def finish_ci(site):
    """Claim and complete the three jobs of a run of `CI`."""
    finish(site, command(site))
    finish(site, command(site, labels=["linux"]))
    finish(site, command(site))
