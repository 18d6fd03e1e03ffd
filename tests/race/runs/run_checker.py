"""Check a finished run against the pure graph: its states, its events, and the results its jobs received."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from event_readers import Received
from expected_run import MARKS, ExpectedRun

from backstay.job import metadata
from backstay.job.model import FINAL, Job
from backstay.job.run_model import Run, RunEvent
from backstay.job.view import decode_plain
from backstay.workflow.graph.graph import (
    Graph,
    JobCompleted,
    JobFailed,
    JobNode,
    JobRequeued,
    JobSkipped,
    JobStarted,
    advance,
)


def name_of(job: Job) -> str:
    return metadata.unpack(job.meta).key + MARKS.get(job.type, "")


def check_run(
    expected: ExpectedRun, run: Run, jobs: list[Job], events: list[RunEvent], received: list[Received]
) -> list[str]:
    """Return the violations, one sentence each. `events` are those in the store, `received` those that a reader got."""
    names = {job.id: name_of(job) for job in jobs}
    violations = [*_check_ends(expected, run, jobs, names), *_check_received(events, received)]
    violations += [*_check_results(jobs, names), *_check_attempts(events, names)]
    if not violations:
        violations += _replay(expected, jobs, events, names)
    return [f"{expected.name} ({run.id}): {one}" for one in violations]


def _check_ends(expected: ExpectedRun, run: Run, jobs: list[Job], names: dict[str, str]) -> list[str]:
    violations: list[str] = []
    if run.status != expected.status:
        violations.append(f"ended as {run.status}, the graph has {expected.status}")
    states = {names[job.id]: job.state for job in jobs}
    if len(states) != len(jobs):
        violations.append("two jobs of one name")
    for name in sorted({*states, *expected.states}):
        if states.get(name) != expected.states.get(name):
            error = next((job.error for job in jobs if names[job.id] == name), None)
            violations.append(f"{name} is {states.get(name)}, the graph has {expected.states.get(name)}; {error}")
    # The run counts a chain once, by the state of its last job.
    counts = {state: n for state in FINAL if (n := sum(job.state == state for job in jobs if not job.followed_by))}
    if run.counts != counts:
        violations.append(f"the run counts {run.counts}, and its jobs are {counts}")
    return violations


def _check_received(events: list[RunEvent], received: list[Received]) -> list[str]:
    """A reader received every event once and in order."""
    violations: list[str] = []
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        violations.append(f"its events have the numbers {[event.seq for event in events]}")
    if [int(one.id) for one in received] != [event.seq for event in events]:
        violations.append(f"a reader received {[one.id for one in received]} of {len(events)} events")
    for one, event in zip(received, events, strict=False):
        # The events of a decision job are sent under the name of the job that it decides about, with their own kinds.
        kinds = {event.kind, "decided" if event.kind == "completed" else "deciding"}
        if one.kind not in kinds or (one.data["uid"], one.data["attempt"]) != (event.job, event.attempt):
            violations.append(f"a reader received {one}, and the store has {event}")
        if not one.data["workflow_id"] or (event.job and one.data["job_id"] == event.job):
            violations.append(f"a reader received an event without the name of its workflow or job: {one}")
    return violations


def _check_results(jobs: list[Job], names: dict[str, str]) -> list[str]:
    """Each job received the results that are stored for its blockers: no stored result was replaced afterwards."""
    tokens: dict[str, str] = {}
    received: list[tuple[str, str, str]] = []
    for job in jobs:
        value: Any = decode_plain(job.result) if job.state == "completed" and job.result else None
        if isinstance(value, dict) and "token" in value:
            tokens[value["key"]] = value["token"]
            received += [(names[job.id], blocker, token) for blocker, token in value["received"].items()]
    return [
        f"{child} received {token} from {blocker}, whose stored result is {tokens.get(blocker)}"
        for child, blocker, token in received
        if tokens.get(blocker) != token
    ]


def _check_attempts(events: list[RunEvent], names: dict[str, str]) -> list[str]:
    ends: defaultdict[str, list[str]] = defaultdict(list)
    attempts: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.kind in FINAL:
            ends[event.job].append(event.kind)
        if event.kind == "started":
            attempts[event.job].append(event.attempt)
    violations = [f"{names.get(job, job)} ended more than once: {how}" for job, how in ends.items() if len(how) > 1]
    # A number may be repeated: a worker that stops releases its job, and that attempt does not count.
    violations += [
        f"{names.get(job, job)} started with the attempt numbers {numbers}"
        for job, numbers in attempts.items()
        if numbers != sorted(numbers) or set(numbers) != set(range(1, max(numbers) + 1))
    ]
    kinds = [event.kind for event in events]
    if kinds.count("run_finished") != 1 or kinds[-1] != "run_finished" or kinds[0] != "run_created":
        violations.append(
            f"its first event is {kinds[0]}, its last {kinds[-1]}, with {kinds.count('run_finished')} run_finished"
        )
    return violations


def _replay(expected: ExpectedRun, jobs: list[Job], events: list[RunEvent], names: dict[str, str]) -> list[str]:
    """Replay the events in order on the pure graph: no job started before it was ready or ended before it started."""
    graph = Graph(expected.first)
    known = {job.id: job for job in jobs}
    violations: list[str] = []
    for event in events:
        if not event.job:
            continue
        name = names[event.job]
        state = graph.states.get(name)
        change: Any = None
        match event.kind:
            case "started":
                allowed, change = ("pending",), JobStarted(name)
            case "completed":
                allowed, change = ("running",), _completed(known[event.job], jobs, names)
            case "failed":
                allowed, change = ("running",), JobFailed(name)
            case "skipped":
                allowed = ("running", "skipped")
                change = JobSkipped(name) if state == "running" else None
            case "ready" | "scheduled":
                # The event of a job that another job adds may precede the end of that other job: both happen in one
                # transaction.
                allowed = ("pending", "running", None)
                change = JobRequeued(name) if state == "running" else None
            case "lease_expired":
                allowed = ("running",)
            case _:
                allowed = ()
        if state not in allowed:
            violations.append(f"event {event.seq}: {event.kind} of {name}, which is {state}")
        if change is not None:
            graph.apply(advance(graph, change))
    if graph.states != expected.graph.states or graph.status != expected.status:
        violations.append("replaying its events gives other states")
    return violations


def _completed(job: Job, jobs: list[Job], names: dict[str, str]) -> JobCompleted:
    name = names[job.id]
    if not job.followed_by:
        return JobCompleted(name)
    following = next(one for one in jobs if one.id == job.followed_by)
    after = tuple(names[id_] for id_ in following.after)
    parts = tuple(JobNode(one) for one in after) if name.endswith("*") else ()
    return JobCompleted(name, JobNode(names[following.id], after, "all_done", chain=name), parts)
