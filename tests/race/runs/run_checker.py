"""Check a finished run against the pure graph: its states, its events, and the results its jobs received."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from event_readers import Seen
from expected_run import MARKS, ExpectedRun

from backstay.job import metadata
from backstay.job.model import FINAL, Job
from backstay.job.run_model import Run, RunEvent
from backstay.job.view import plain
from backstay.workflow.graph.graph import Completed, Failed, Graph, Node, Requeued, Skipped, Started, advance


def name_of(job: Job) -> str:
    return metadata.unpack(job.meta).key + MARKS.get(job.type, "")


def check_run(expected: ExpectedRun, run: Run, jobs: list[Job], told: list[RunEvent], seen: list[Seen]) -> list[str]:
    """Each is a sentence; none: all is well."""
    names = {job.id: name_of(job) for job in jobs}
    wrong = [*_ends(expected, run, jobs, names), *_observed(told, seen), *_results(jobs, names)]
    wrong += _once(told, names)
    if not wrong:
        wrong += _replay(expected, jobs, told, names)
    return [f"{expected.name} ({run.id}): {one}" for one in wrong]


def _ends(expected: ExpectedRun, run: Run, jobs: list[Job], names: dict[str, str]) -> list[str]:
    wrong: list[str] = []
    if run.status != expected.status:
        wrong.append(f"ended as {run.status}, the graph says {expected.status}")
    states = {names[job.id]: job.state for job in jobs}
    if len(states) != len(jobs):
        wrong.append("two jobs of one name")
    for name in sorted({*states, *expected.states}):
        if states.get(name) != expected.states.get(name):
            error = next((job.error for job in jobs if names[job.id] == name), None)
            wrong.append(f"{name} is {states.get(name)}, the graph says {expected.states.get(name)}; {error}")
    # A chain counts as its last job.
    counts = {state: n for state in FINAL if (n := sum(job.state == state for job in jobs if not job.followed_by))}
    if run.counts != counts:
        wrong.append(f"the run counts {run.counts}, and its jobs are {counts}")
    return wrong


def _observed(told: list[RunEvent], seen: list[Seen]) -> list[str]:
    """Whoever followed it saw all of it, each once and in order."""
    wrong: list[str] = []
    if [event.seq for event in told] != list(range(1, len(told) + 1)):
        wrong.append(f"its events have the numbers {[event.seq for event in told]}")
    if [int(one.id) for one in seen] != [event.seq for event in told]:
        wrong.append(f"a reader saw {[one.id for one in seen]} of {len(told)} events")
    for one, event in zip(seen, told, strict=False):
        # What decides about a job stands in its place until then, and is shown as that.
        kinds = {event.kind, "decided" if event.kind == "completed" else "deciding"}
        if one.kind not in kinds or (one.data["uid"], one.data["attempt"]) != (event.job, event.attempt):
            wrong.append(f"a reader was told {one}, and what happened was {event}")
        if not one.data["workflow_id"] or (event.job and one.data["job_id"] == event.job):
            wrong.append(f"a reader was told of no name: {one}")
    return wrong


def _results(jobs: list[Job], names: dict[str, str]) -> list[str]:
    """What a job was handed is what the one before it is kept to have said: nothing was put in its place later."""
    words: dict[str, str] = {}
    handed: list[tuple[str, str, str]] = []
    for job in jobs:
        value: Any = plain(job.result) if job.state == "completed" and job.result else None
        if isinstance(value, dict) and "word" in value:
            words[value["key"]] = value["word"]
            handed += [(names[job.id], parent, word) for parent, word in value["seen"].items()]
    return [
        f"{child} was handed {word} by {by}, who said {words.get(by)}"
        for child, by, word in handed
        if words.get(by) != word
    ]


def _once(told: list[RunEvent], names: dict[str, str]) -> list[str]:
    ends: defaultdict[str, list[str]] = defaultdict(list)
    attempts: defaultdict[str, list[int]] = defaultdict(list)
    for event in told:
        if event.kind in FINAL:
            ends[event.job].append(event.kind)
        if event.kind == "started":
            attempts[event.job].append(event.attempt)
    wrong = [f"{names.get(job, job)} ended more than once: {how}" for job, how in ends.items() if len(how) > 1]
    # The same number again: it was given back, and that attempt does not count.
    wrong += [
        f"{names.get(job, job)} was begun as {its}"
        for job, its in attempts.items()
        if its != sorted(its) or set(its) != set(range(1, max(its) + 1))
    ]
    kinds = [event.kind for event in told]
    if kinds.count("run_finished") != 1 or kinds[-1] != "run_finished" or kinds[0] != "run_created":
        wrong.append(f"it began with {kinds[0]}, ended with {kinds[-1]}, {kinds.count('run_finished')} times")
    return wrong


def _replay(expected: ExpectedRun, jobs: list[Job], told: list[RunEvent], names: dict[str, str]) -> list[str]:
    """Replay the events in order on the pure graph: no job began before it was ready or ended before it began."""
    graph = Graph(expected.first)
    known = {job.id: job for job in jobs}
    wrong: list[str] = []
    for event in told:
        if not event.job:
            continue
        name = names[event.job]
        state = graph.states.get(name)
        deed: Any = None
        match event.kind:
            case "started":
                allowed, deed = ("pending",), Started(name)
            case "completed":
                allowed, deed = ("running",), _completed(known[event.job], jobs, names)
            case "failed":
                allowed, deed = ("running",), Failed(name)
            case "skipped":
                allowed = ("running", "skipped")
                deed = Skipped(name) if state == "running" else None
            case "ready" | "scheduled":
                # A job that another job adds may be announced before that job's end: both events are simultaneous.
                allowed = ("pending", "running", None)
                deed = Requeued(name) if state == "running" else None
            case "lease_expired":
                allowed = ("running",)
            case _:
                allowed = ()
        if state not in allowed:
            wrong.append(f"event {event.seq}: {event.kind} of {name}, which is {state}")
        if deed is not None:
            graph.apply(advance(graph, deed))
    if graph.states != expected.graph.states or graph.status != expected.status:
        wrong.append("its events lead elsewhere")
    return wrong


def _completed(job: Job, jobs: list[Job], names: dict[str, str]) -> Completed:
    name = names[job.id]
    if not job.followed_by:
        return Completed(name)
    following = next(one for one in jobs if one.id == job.followed_by)
    after = tuple(names[id_] for id_ in following.after)
    parts = tuple(Node(one) for one in after) if name.endswith("*") else ()
    return Completed(name, Node(names[following.id], after, "all_done", chain=name), parts)
