"""What holds for every run, whatever its shape and whatever happens in it."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.job.model import FINAL
from backstay.job.run_model import FINISHED
from backstay.workflow.graph.graph import (
    Cancelled,
    Completed,
    Failed,
    FailedRerun,
    Graph,
    Node,
    PutOff,
    Retried,
    RunCancelled,
    Skipped,
    Started,
    advance,
)
from backstay.workflow.graph.state import SPOILT

WHENS = ("all_success", "all_done", "any_failure")


@st.composite
def dags(draw, most=9, whens=WHENS):
    """Jobs that wait for some of those before them."""
    nodes = []
    for n in range(draw(st.integers(1, most))):
        after = tuple(f"j{m}" for m in range(n) if draw(st.booleans()) and draw(st.booleans()))
        nodes.append(
            Node(f"j{n}", after, draw(st.sampled_from(whens)) if after else "all_success", draw(st.booleans()))
        )
    return nodes


@st.composite
def stories(draw):
    """A run and things that happen in it, sensible or not."""
    nodes = draw(dags())
    job = st.sampled_from([node.id for node in nodes])
    kinds = (Started, PutOff, Completed, Failed, Skipped, Cancelled, Retried)
    one = st.one_of(*(st.builds(kind, job) for kind in kinds), st.builds(RunCancelled), st.builds(FailedRerun))
    return nodes, draw(st.lists(one, max_size=40))


def plain(cells):
    return {id_: (c.node, c.state, c.waits, c.lost, c.tainted) for id_, c in cells.items()}


def play(graph, event):
    changes = advance(graph, event)
    graph.apply(changes)
    return changes


def finish(graph, outcomes, rnd):
    """Work until nothing is left to do, in any order."""
    running = []
    while True:
        ready = graph.ready()
        if not ready and not running:
            return
        if ready and (not running or rnd.random() < 0.5):
            job = rnd.choice(ready)
            play(graph, Started(job))
            running.append(job)
        else:
            job = running.pop(rnd.randrange(len(running)))
            play(graph, outcomes[job](job))


@given(stories())
@settings(max_examples=300, deadline=None)
def test_the_books_are_right_after_every_event(story):
    nodes, events = story
    graph = Graph(nodes)
    for event in events:
        before = plain(copy.deepcopy(graph.jobs))
        changes = advance(graph, event)
        assert plain(graph.jobs) == before, "advance is pure"
        graph.apply(changes)
        assert graph.open == sum(cell.state not in FINAL for cell in graph.jobs.values())
        assert graph.failures == sum(c.state == "failed" and not c.node.soft for c in graph.jobs.values())
        assert (graph.status in FINISHED) == (graph.open == 0)
        for cell in graph.jobs.values():
            if cell.state == "blocked":
                assert cell.waits
            for chain in cell.waits:
                if cell.state == "blocked":
                    assert graph.jobs[chain].state not in FINAL
            if cell.state in ("pending", "running") and cell.node.when == "all_success":
                assert not set(SPOILT) & set(cell.lost.values()), "whatever is tried again, needs come first"
            if cell.state in ("pending", "running") and isinstance(event, (Started, Completed, Failed)):
                assert not cell.waits


@given(dags(), st.data(), st.randoms(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_the_order_of_events_does_not_matter(nodes, data, one, other):
    """Where jobs that run on failure are not waited for themselves: what they are skipped by is nobody's failure, and
    whoever waits for both it and a failure is skipped by the first of the two.
    """
    waited = {chain for node in nodes for chain in node.after}
    nodes = [n if n.id not in waited or n.when != "any_failure" else Node(n.id, n.after, "all_done") for n in nodes]
    outcomes = {node.id: data.draw(st.sampled_from((Completed, Failed)), node.id) for node in nodes}
    ends = []
    for rnd in (one, other):
        graph = Graph(nodes)
        finish(graph, outcomes, rnd)
        ends.append((graph.states, graph.status))
    assert ends[0] == ends[1]
    hard = any(ends[0][0][node.id] == "failed" and not node.soft for node in nodes)
    assert ends[0][1] == ("failure" if hard else "success")


@given(stories(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_cancel_wins(story, rnd):
    nodes, events = story
    graph = Graph(nodes)
    for event in events:
        play(graph, event)
    if graph.status in FINISHED:
        return
    play(graph, RunCancelled())
    kinds = (Completed, Failed, PutOff, Skipped, Started, Retried)
    for _ in range(100):
        if graph.status in FINISHED:
            break
        play(graph, rnd.choice(kinds)(rnd.choice(nodes).id))
        assert not graph.ready()
    for node in nodes:
        play(graph, Completed(node.id))
    assert graph.status == "cancelled"


@given(dags(), st.data(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_rerun_of_what_failed_ends_as_if_nothing_had(nodes, data, rnd):
    """With jobs that need success alone: what ran for the sake of a failure stays as it is."""
    nodes = [Node(node.id, node.after, "all_success", node.soft) for node in nodes]
    outcomes = {node.id: data.draw(st.sampled_from((Completed, Failed)), node.id) for node in nodes}
    graph = Graph(nodes)
    finish(graph, outcomes, rnd)
    play(graph, FailedRerun())
    assert (graph.status == "running") == any(cell.state == "pending" for cell in graph.jobs.values())
    finish(graph, dict.fromkeys(outcomes, Completed), rnd)
    assert graph.status == "success"
    assert set(graph.states.values()) == {"completed"}


@given(dags(), st.data(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_retry_reopens_the_run(nodes, data, rnd):
    outcomes = {node.id: data.draw(st.sampled_from((Completed, Failed)), node.id) for node in nodes}
    graph = Graph(nodes)
    finish(graph, outcomes, rnd)
    failed = [id_ for id_, state in graph.states.items() if state == "failed"]
    if not failed:
        return
    play(graph, Retried(rnd.choice(failed)))
    assert graph.status == "running"
    finish(graph, outcomes, rnd)
    assert graph.status in ("failure", "success")
    assert (graph.status == "failure") == (graph.failures > 0)


@given(stories())
@settings(max_examples=200, deadline=None)
def test_the_work_is_bounded_by_the_edges_of_what_moves(story):
    nodes, events = story
    graph = Graph(nodes)
    edges = {node.id: len(node.after) + sum(node.id in other.after for other in nodes) for node in nodes}
    for event in events:
        changes = play(graph, event)
        assert changes.touched <= sum(edges[id_] for id_, _ in changes.moves)
