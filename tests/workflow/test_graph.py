"""What a run does next, by example."""

from backstay.job.model import NewJob
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

DIAMOND = (Node("a"), Node("b", ("a",)), Node("c", ("a",)), Node("d", ("b", "c")))


def play(graph, *events):
    for event in events:
        graph.apply(advance(graph, event))
    return graph


def done(graph, *jobs):
    for job in jobs:
        play(graph, Started(job), Completed(job))
    return graph


def failed(graph, *jobs):
    for job in jobs:
        play(graph, Started(job), Failed(job))
    return graph


def test_a_run_without_jobs_is_a_success_at_once():
    assert Graph().status == "success"


def test_a_diamond_goes_from_one_side_to_the_other():
    graph = Graph(DIAMOND)
    assert graph.ready() == ["a"]
    assert graph.status == "queued"
    play(graph, Started("a"))
    assert graph.status == "running"
    play(graph, Completed("a"))
    assert graph.ready() == ["b", "c"]
    done(graph, "b")
    assert graph.ready() == ["c"]
    done(graph, "c", "d")
    assert graph.status == "success"


def test_a_failure_skips_whatever_waits_for_it_and_theirs():
    graph = failed(done(Graph(DIAMOND), "a"), "b")
    assert graph.states == {"a": "completed", "b": "failed", "c": "pending", "d": "skipped"}
    assert graph.status == "running"
    assert done(graph, "c").status == "failure"


def test_always_runs_after_whatever_end():
    graph = failed(Graph([Node("a"), Node("b", ("a",)), Node("tidy", ("b",), "all_done")]), "a")
    assert graph.states == {"a": "failed", "b": "skipped", "tidy": "pending"}
    assert done(graph, "tidy").status == "failure"


def test_a_job_for_failures_runs_after_one_before_it_failed_however_far_away():
    nodes = [Node("a"), Node("b", ("a",)), Node("mail", ("b",), "any_failure")]
    assert failed(Graph(nodes), "a").states["mail"] == "pending"
    assert done(Graph(nodes), "a", "b").states["mail"] == "skipped"
    assert done(Graph(nodes), "a", "b").status == "success"


def test_a_job_for_failures_that_waits_for_nothing_has_nothing_to_do():
    graph = Graph([Node("mail", (), "any_failure"), Node("after", ("mail",))])
    assert graph.states == {"mail": "skipped", "after": "skipped"}
    assert graph.status == "success"


def test_a_cancelled_blocker_is_nobodys_failure():
    nodes = [Node("a"), Node("b", ("a",)), Node("mail", ("b",), "any_failure")]
    graph = play(Graph(nodes), Cancelled("a"))
    assert graph.states == {"a": "cancelled", "b": "skipped", "mail": "skipped"}


def test_a_soft_failure_holds_nobody_up():
    graph = failed(Graph([Node("a", soft=True), Node("b", ("a",)), Node("mail", ("a",), "any_failure")]), "a")
    assert graph.states == {"a": "failed", "b": "pending", "mail": "skipped"}
    assert done(graph, "b").status == "success"


def test_what_need_not_be_done_skips_those_behind_it_as_nobodys_failure():
    nodes = [Node("a"), Node("b", ("a",)), Node("mail", ("b",), "any_failure")]
    graph = play(Graph(nodes), Started("a"), Skipped("a"))
    assert set(graph.states.values()) == {"skipped"}
    assert graph.status == "success"


def test_a_retry_opens_the_run_and_those_that_were_skipped():
    graph = done(failed(done(Graph(DIAMOND), "a"), "b"), "c")
    assert graph.status == "failure"
    play(graph, Retried("b"))
    assert graph.status == "running"
    assert graph.states == {"a": "completed", "b": "pending", "c": "completed", "d": "blocked"}
    assert done(graph, "b", "d").status == "success"


def test_a_run_that_nobody_has_begun_stays_queued_when_one_of_its_jobs_is_tried_again():
    graph = play(Graph([Node("a"), Node("b")]), Cancelled("a"))
    assert play(graph, Retried("a")).status == "queued"
    assert play(graph, Cancelled("a"), Cancelled("b")).status == "success"
    assert play(graph, Retried("a")).status == "running"


def test_what_was_skipped_for_two_waits_for_both_again():
    nodes = [Node("a"), Node("b"), Node("c", ("a", "b"))]
    graph = failed(Graph(nodes), "a", "b")
    play(graph, Retried("a"))
    assert graph.states["c"] == "skipped"
    play(graph, Retried("b"))
    assert graph.states["c"] == "blocked"
    done(graph, "a")
    assert graph.states["c"] == "blocked"
    assert done(graph, "b", "c").status == "success"


def test_a_rerun_after_a_cancel_keeps_the_order():
    graph = done(Graph(DIAMOND), "a")
    play(graph, RunCancelled())
    assert graph.states == {"a": "completed", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert graph.status == "cancelled"
    play(graph, FailedRerun())
    assert graph.states == {"a": "completed", "b": "pending", "c": "pending", "d": "blocked"}
    assert done(graph, "b", "c", "d").status == "success"


def test_who_comes_back_in_a_rerun_waits_for_all_that_do():
    graph = Graph([Node("a"), Node("b"), Node("c", ("a", "b"), "all_done")])
    play(failed(graph, "a", "b"), Started("c"), Skipped("c"))
    play(graph, FailedRerun())
    assert graph.states == {"a": "pending", "b": "pending", "c": "blocked"}
    assert done(graph, "a").states["c"] == "blocked"
    assert done(graph, "b").states["c"] == "pending"


def test_what_was_cancelled_when_it_was_made_can_be_tried_again():
    graph = done(Graph([Node("a"), Node("map", ("a",))]), "a")
    play(graph, Started("map"), RunCancelled(), Completed("map", next=Node("gather", ("a",))))
    assert graph.states["gather"] == "cancelled"
    assert play(graph, Retried("gather")).states["gather"] == "pending"


def test_a_rerun_is_for_runs_that_have_ended():
    graph = failed(Graph([Node("a"), Node("b")]), "a")
    assert advance(graph, FailedRerun()).moves == ()


def test_cancelled_work_is_not_brought_back_by_its_late_failure():
    for late in (PutOff("a"), Failed("a"), Skipped("a")):
        graph = play(Graph([Node("a"), Node("b", ("a",))]), Started("a"))
        changes = advance(graph, RunCancelled())
        assert changes.stop == ("a",)
        graph.apply(changes)
        assert graph.status == "running"
        play(graph, late)
        assert graph.states == {"a": "cancelled", "b": "cancelled"}
        assert graph.status == "cancelled"


def test_what_completes_after_the_cancel_has_completed():
    graph = play(Graph([Node("a"), Node("b", ("a",))]), Started("a"), RunCancelled(), Completed("a"))
    assert graph.states == {"a": "completed", "b": "cancelled"}
    assert graph.status == "cancelled"


def test_a_retry_waits_until_a_cancelled_run_has_ended():
    graph = play(Graph([Node("a"), Node("b")]), Started("a"), RunCancelled())
    assert advance(graph, Retried("b")).moves == ()


def test_dependents_wait_for_the_whole_chain():
    graph = Graph([Node("a"), Node("b", ("a",))])
    play(graph, Started("a"), Completed("a", next=Node("a2")))
    assert graph.states == {"a": "completed", "b": "blocked", "a2": "pending"}
    assert done(graph, "a2").states["b"] == "pending"


def test_a_chain_goes_on_behind_the_jobs_it_added():
    graph = Graph([Node("map"), Node("sum", ("map",))])
    adds = (Node("x"), Node("y"))
    play(graph, Started("map"), Completed("map", next=Node("gather", ("x", "y"), "all_done"), adds=adds))
    assert graph.states["gather"] == "blocked"
    failed(done(graph, "x"), "y")
    assert graph.states["gather"] == "pending"
    failed(graph, "gather")
    assert graph.states["sum"] == "skipped"
    play(graph, Retried("y"))
    assert done(graph, "y").states["gather"] == "failed"
    play(graph, Retried("gather"))
    assert done(graph, "gather", "sum").status == "success"


def test_jobs_that_are_added_to_a_cancelled_run_are_cancelled_when_they_are_made():
    graph = play(Graph([Node("map")]), Started("map"), RunCancelled())
    play(graph, Completed("map", next=Node("gather", ("x",)), adds=(Node("x"),)))
    assert graph.states == {"map": "completed", "x": "cancelled", "gather": "cancelled"}
    assert graph.status == "cancelled"


def test_an_event_that_comes_too_late_changes_nothing():
    graph = done(Graph([Node("a")]), "a")
    for event in (Started("a"), Completed("a"), Failed("a"), PutOff("a"), Cancelled("a"), RunCancelled(), Failed("z")):
        changes = advance(graph, event)
        assert not changes.moves
        assert changes.status is None


def test_a_long_line_is_skipped_without_recursion():
    graph = failed(Graph([Node("0"), *(Node(str(n), (str(n - 1),)) for n in range(1, 20_000))]), "0")
    assert graph.status == "failure"
    assert set(graph.states.values()) == {"failed", "skipped"}


def test_the_work_is_linear_in_the_edges():
    """Fan-out and fan-in of ten thousand: an end looks at its own edges, not at the run."""
    width = 10_000
    middle = [Node(f"m{n}", ("root",)) for n in range(width)]
    graph = Graph([Node("root"), *middle, Node("end", tuple(node.id for node in middle))])
    play(graph, Started("root"))
    changes = advance(graph, Completed("root"))
    assert changes.touched == width
    graph.apply(changes)
    touched = 0
    for node in middle:
        play(graph, Started(node.id))
        changes = advance(graph, Completed(node.id))
        touched += changes.touched
        graph.apply(changes)
    assert touched == width
    assert graph.ready() == ["end"]


def test_a_graph_is_made_of_a_runs_jobs():
    jobs = [
        NewJob(id="0-1", type="t", run="0-0"),
        NewJob(id="0-2", type="t", run="0-0", after=("0-1",), when="all_done", soft=True),
    ]
    graph = Graph.of(jobs)
    assert graph.jobs["0-2"].node == Node("0-2", ("0-1",), "all_done", soft=True)
