"""Properties of the job graph that hold for every shape of run and every sequence of events."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.job.model import FINAL
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.graph import (
    FailedRerun,
    Graph,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobNode,
    JobRequeued,
    JobRetried,
    JobSkipped,
    JobStarted,
    RunCancelled,
    advance,
)
from backstay.workflow.graph.state import UNSUCCESSFUL

WHENS = ("all_success", "all_done", "any_failure")


@st.composite
def dags(draw, most=9, whens=WHENS):
    """Jobs that depend on some of the earlier jobs."""
    nodes = []
    for n in range(draw(st.integers(1, most))):
        after = tuple(f"j{m}" for m in range(n) if draw(st.booleans()) and draw(st.booleans()))
        nodes.append(
            JobNode(f"j{n}", after, draw(st.sampled_from(whens)) if after else "all_success", draw(st.booleans()))
        )
    return nodes


@st.composite
def runs_with_events(draw):
    """A run and a sequence of events, valid or stale."""
    nodes = draw(dags())
    job = st.sampled_from([node.id for node in nodes])
    kinds = (JobStarted, JobRequeued, JobCompleted, JobFailed, JobSkipped, JobCancelled, JobRetried)
    one = st.one_of(*(st.builds(kind, job) for kind in kinds), st.builds(RunCancelled), st.builds(FailedRerun))
    return nodes, draw(st.lists(one, max_size=40))


def plain(cells):
    return {id_: (c.node, c.state, c.waits, c.uncompleted, c.tainted) for id_, c in cells.items()}


def apply_event(graph, event):
    changes = advance(graph, event)
    graph.apply(changes)
    return changes


def finish(graph, outcomes, rnd):
    """Run all jobs to their outcomes in random order."""
    running = []
    while True:
        ready = graph.ready()
        if not ready and not running:
            return
        if ready and (not running or rnd.random() < 0.5):
            job = rnd.choice(ready)
            apply_event(graph, JobStarted(job))
            running.append(job)
        else:
            job = running.pop(rnd.randrange(len(running)))
            apply_event(graph, outcomes[job](job))


@given(runs_with_events())
@settings(max_examples=300, deadline=None)
def test_the_counters_are_correct_after_every_event(case):
    nodes, events = case
    graph = Graph(nodes)
    for event in events:
        before = plain(copy.deepcopy(graph.jobs))
        changes = advance(graph, event)
        assert plain(graph.jobs) == before, "advance is pure"
        graph.apply(changes)
        assert graph.open == sum(cell.state not in FINAL for cell in graph.jobs.values())
        assert graph.failures == sum(c.state == "failed" and not c.node.soft for c in graph.jobs.values())
        assert graph.cancelled == sum(cell.state == "cancelled" for cell in graph.jobs.values())
        assert (graph.status in FINISHED) == (graph.open == 0)
        for cell in graph.jobs.values():
            if cell.state == "blocked":
                assert cell.waits
            for chain in cell.waits:
                if cell.state == "blocked":
                    assert graph.jobs[chain].state not in FINAL
            if cell.state in ("pending", "running") and cell.node.when == "all_success":
                assert not set(UNSUCCESSFUL) & set(cell.uncompleted.values()), "a retried job still needs its blockers"
            if cell.state in ("pending", "running") and isinstance(event, (JobStarted, JobCompleted, JobFailed)):
                assert not cell.waits


@given(runs_with_events())
@settings(max_examples=300, deadline=None)
def test_the_status_of_a_finished_run_follows_from_its_jobs(case):
    """A failure that is not tolerated counts before a cancellation, and that before success. Skipped jobs and tolerated
    failures count as success. A cancellation of the run counts until a retry reopens it.
    """
    nodes, events = case
    graph = Graph(nodes)
    cancelled = False
    for event in events:
        if isinstance(event, RunCancelled) and graph.status not in FINISHED:
            cancelled = True
        was_finished = graph.status in FINISHED
        apply_event(graph, event)
        if was_finished and graph.status not in FINISHED:
            cancelled = False
        if graph.status not in FINISHED:
            continue
        hard = {cell.state for cell in graph.jobs.values() if not (cell.node.soft and cell.state == "failed")}
        if "failed" in hard:
            assert graph.status == "failure"
        elif cancelled or "cancelled" in hard:
            assert graph.status == "cancelled"
        else:
            assert graph.status == "success"


@given(dags(), st.data(), st.randoms(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_the_order_of_events_does_not_matter(nodes, data, one, other):
    """Excludes any_failure jobs that have dependents: a skipped any_failure job is not a failure, so a job that depends
    on both it and a failed job is skipped by whichever ends first.
    """
    waited = {chain for node in nodes for chain in node.after}
    nodes = [n if n.id not in waited or n.when != "any_failure" else JobNode(n.id, n.after, "all_done") for n in nodes]
    outcomes = {node.id: data.draw(st.sampled_from((JobCompleted, JobFailed)), node.id) for node in nodes}
    ends = []
    for rnd in (one, other):
        graph = Graph(nodes)
        finish(graph, outcomes, rnd)
        ends.append((graph.states, graph.status))
    assert ends[0] == ends[1]
    hard = any(ends[0][0][node.id] == "failed" and not node.soft for node in nodes)
    assert ends[0][1] == ("failure" if hard else "success")


@given(runs_with_events(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_cancelled_run_ends_cancelled_unless_a_job_had_failed(case, rnd):
    nodes, events = case
    graph = Graph(nodes)
    for event in events:
        apply_event(graph, event)
    if graph.status in FINISHED:
        return
    apply_event(graph, RunCancelled())
    expected = "failure" if graph.failures else "cancelled"
    kinds = (JobCompleted, JobFailed, JobRequeued, JobSkipped, JobStarted, JobRetried)
    for _ in range(100):
        if graph.status in FINISHED:
            break
        apply_event(graph, rnd.choice(kinds)(rnd.choice(nodes).id))
        assert not graph.ready()
    for node in nodes:
        apply_event(graph, JobCompleted(node.id))
    assert graph.status == expected


@given(dags(), st.data(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_rerun_of_failed_jobs_ends_like_a_run_without_failures(nodes, data, rnd):
    """Uses all_success jobs only: a rerun does not reset jobs that ran because of a failure."""
    nodes = [JobNode(node.id, node.after, "all_success", node.soft) for node in nodes]
    outcomes = {node.id: data.draw(st.sampled_from((JobCompleted, JobFailed)), node.id) for node in nodes}
    graph = Graph(nodes)
    finish(graph, outcomes, rnd)
    apply_event(graph, FailedRerun())
    assert (graph.status == "running") == any(cell.state == "pending" for cell in graph.jobs.values())
    finish(graph, dict.fromkeys(outcomes, JobCompleted), rnd)
    assert graph.status == "success"
    assert set(graph.states.values()) == {"completed"}


@given(dags(), st.data(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_retry_reopens_the_run(nodes, data, rnd):
    outcomes = {node.id: data.draw(st.sampled_from((JobCompleted, JobFailed)), node.id) for node in nodes}
    graph = Graph(nodes)
    finish(graph, outcomes, rnd)
    failed = [id_ for id_, state in graph.states.items() if state == "failed"]
    if not failed:
        return
    apply_event(graph, JobRetried(rnd.choice(failed)))
    assert graph.status == "running"
    finish(graph, outcomes, rnd)
    assert graph.status in ("failure", "success")
    assert (graph.status == "failure") == (graph.failures > 0)


@given(runs_with_events())
@settings(max_examples=200, deadline=None)
def test_the_work_is_bounded_by_the_edges_of_changed_jobs(case):
    nodes, events = case
    graph = Graph(nodes)
    edges = {node.id: len(node.after) + sum(node.id in other.after for other in nodes) for node in nodes}
    for event in events:
        changes = apply_event(graph, event)
        assert changes.edges_visited <= sum(edges[id_] for id_, _ in changes.moves)
