"""Transitions of a run's job graph, by example."""

from backstay.job.model import NewJob
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

DIAMOND = (JobNode("a"), JobNode("b", ("a",)), JobNode("c", ("a",)), JobNode("d", ("b", "c")))


def apply_events(graph, *events):
    for event in events:
        graph.apply(advance(graph, event))
    return graph


def complete_jobs(graph, *jobs):
    for job in jobs:
        apply_events(graph, JobStarted(job), JobCompleted(job))
    return graph


def fail_jobs(graph, *jobs):
    for job in jobs:
        apply_events(graph, JobStarted(job), JobFailed(job))
    return graph


def test_a_run_without_jobs_is_a_success_at_once():
    assert Graph().status == "success"


def test_a_diamond_runs_in_dependency_order():
    graph = Graph(DIAMOND)
    assert graph.ready() == ["a"]
    assert graph.status == "queued"
    apply_events(graph, JobStarted("a"))
    assert graph.status == "running"
    apply_events(graph, JobCompleted("a"))
    assert graph.ready() == ["b", "c"]
    complete_jobs(graph, "b")
    assert graph.ready() == ["c"]
    complete_jobs(graph, "c", "d")
    assert graph.status == "success"


def test_a_failure_skips_direct_and_indirect_dependents():
    graph = fail_jobs(complete_jobs(Graph(DIAMOND), "a"), "b")
    assert graph.states == {"a": "completed", "b": "failed", "c": "pending", "d": "skipped"}
    assert graph.status == "running"
    assert complete_jobs(graph, "c").status == "failure"


def test_an_all_done_job_runs_after_any_outcome():
    graph = fail_jobs(Graph([JobNode("a"), JobNode("b", ("a",)), JobNode("tidy", ("b",), "all_done")]), "a")
    assert graph.states == {"a": "failed", "b": "skipped", "tidy": "pending"}
    assert complete_jobs(graph, "tidy").status == "failure"


def test_an_any_failure_job_runs_after_a_direct_or_indirect_failure():
    nodes = [JobNode("a"), JobNode("b", ("a",)), JobNode("mail", ("b",), "any_failure")]
    assert fail_jobs(Graph(nodes), "a").states["mail"] == "pending"
    assert complete_jobs(Graph(nodes), "a", "b").states["mail"] == "skipped"
    assert complete_jobs(Graph(nodes), "a", "b").status == "success"


def test_an_any_failure_job_without_needs_is_skipped():
    graph = Graph([JobNode("mail", (), "any_failure"), JobNode("after", ("mail",))])
    assert graph.states == {"mail": "skipped", "after": "skipped"}
    assert graph.status == "success"


def test_a_cancelled_blocker_is_not_a_failure():
    nodes = [JobNode("a"), JobNode("b", ("a",)), JobNode("mail", ("b",), "any_failure")]
    graph = apply_events(Graph(nodes), JobCancelled("a"))
    assert graph.states == {"a": "cancelled", "b": "skipped", "mail": "skipped"}


def test_a_soft_failure_does_not_skip_dependents():
    graph = fail_jobs(
        Graph([JobNode("a", soft=True), JobNode("b", ("a",)), JobNode("mail", ("a",), "any_failure")]), "a"
    )
    assert graph.states == {"a": "failed", "b": "pending", "mail": "skipped"}
    assert complete_jobs(graph, "b").status == "success"


def test_a_skipped_job_skips_its_dependents_without_a_failure():
    nodes = [JobNode("a"), JobNode("b", ("a",)), JobNode("mail", ("b",), "any_failure")]
    graph = apply_events(Graph(nodes), JobStarted("a"), JobSkipped("a"))
    assert set(graph.states.values()) == {"skipped"}
    assert graph.status == "success"


def test_a_retry_reopens_the_run_and_its_skipped_jobs():
    graph = complete_jobs(fail_jobs(complete_jobs(Graph(DIAMOND), "a"), "b"), "c")
    assert graph.status == "failure"
    apply_events(graph, JobRetried("b"))
    assert graph.status == "running"
    assert graph.states == {"a": "completed", "b": "pending", "c": "completed", "d": "blocked"}
    assert complete_jobs(graph, "b", "d").status == "success"


def test_a_retry_keeps_a_run_queued_that_has_not_started():
    graph = apply_events(Graph([JobNode("a"), JobNode("b")]), JobCancelled("a"))
    assert apply_events(graph, JobRetried("a")).status == "queued"
    assert apply_events(graph, JobCancelled("a"), JobCancelled("b")).status == "cancelled"
    assert apply_events(graph, JobRetried("a")).status == "running"


def test_a_job_skipped_for_two_failures_waits_for_both_retries():
    nodes = [JobNode("a"), JobNode("b"), JobNode("c", ("a", "b"))]
    graph = fail_jobs(Graph(nodes), "a", "b")
    apply_events(graph, JobRetried("a"))
    assert graph.states["c"] == "skipped"
    apply_events(graph, JobRetried("b"))
    assert graph.states["c"] == "blocked"
    complete_jobs(graph, "a")
    assert graph.states["c"] == "blocked"
    assert complete_jobs(graph, "b", "c").status == "success"


def test_a_rerun_after_a_cancel_keeps_the_dependency_order():
    graph = complete_jobs(Graph(DIAMOND), "a")
    apply_events(graph, RunCancelled())
    assert graph.states == {"a": "completed", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert graph.status == "cancelled"
    apply_events(graph, FailedRerun())
    assert graph.states == {"a": "completed", "b": "pending", "c": "pending", "d": "blocked"}
    assert complete_jobs(graph, "b", "c", "d").status == "success"


def test_a_job_reopened_by_a_rerun_waits_for_all_reopened_blockers():
    graph = Graph([JobNode("a"), JobNode("b"), JobNode("c", ("a", "b"), "all_done")])
    apply_events(fail_jobs(graph, "a", "b"), JobStarted("c"), JobSkipped("c"))
    apply_events(graph, FailedRerun())
    assert graph.states == {"a": "pending", "b": "pending", "c": "blocked"}
    assert complete_jobs(graph, "a").states["c"] == "blocked"
    assert complete_jobs(graph, "b").states["c"] == "pending"


def test_a_job_cancelled_at_its_creation_can_be_retried():
    graph = complete_jobs(Graph([JobNode("a"), JobNode("map", ("a",))]), "a")
    apply_events(graph, JobStarted("map"), RunCancelled(), JobCompleted("map", next=JobNode("gather", ("a",))))
    assert graph.states["gather"] == "cancelled"
    assert apply_events(graph, JobRetried("gather")).states["gather"] == "pending"


def test_a_rerun_of_an_open_run_changes_nothing():
    graph = fail_jobs(Graph([JobNode("a"), JobNode("b")]), "a")
    assert advance(graph, FailedRerun()).moves == ()


def test_a_late_outcome_does_not_reopen_a_cancelled_job():
    for late in (JobRequeued("a"), JobFailed("a"), JobSkipped("a")):
        graph = apply_events(Graph([JobNode("a"), JobNode("b", ("a",))]), JobStarted("a"))
        changes = advance(graph, RunCancelled())
        assert changes.stop == ("a",)
        graph.apply(changes)
        assert graph.status == "running"
        apply_events(graph, late)
        assert graph.states == {"a": "cancelled", "b": "cancelled"}
        assert graph.status == "cancelled"


def test_a_job_that_completes_after_the_cancel_is_completed():
    graph = apply_events(
        Graph([JobNode("a"), JobNode("b", ("a",))]), JobStarted("a"), RunCancelled(), JobCompleted("a")
    )
    assert graph.states == {"a": "completed", "b": "cancelled"}
    assert graph.status == "cancelled"


def test_a_retry_in_a_cancelled_run_that_is_still_open_changes_nothing():
    graph = apply_events(Graph([JobNode("a"), JobNode("b")]), JobStarted("a"), RunCancelled())
    assert advance(graph, JobRetried("b")).moves == ()


def test_dependents_wait_for_the_whole_chain():
    graph = Graph([JobNode("a"), JobNode("b", ("a",))])
    apply_events(graph, JobStarted("a"), JobCompleted("a", next=JobNode("a2")))
    assert graph.states == {"a": "completed", "b": "blocked", "a2": "pending"}
    assert complete_jobs(graph, "a2").states["b"] == "pending"


def test_a_chain_continues_after_the_jobs_that_it_added():
    graph = Graph([JobNode("map"), JobNode("sum", ("map",))])
    adds = (JobNode("x"), JobNode("y"))
    apply_events(
        graph, JobStarted("map"), JobCompleted("map", next=JobNode("gather", ("x", "y"), "all_done"), adds=adds)
    )
    assert graph.states["gather"] == "blocked"
    fail_jobs(complete_jobs(graph, "x"), "y")
    assert graph.states["gather"] == "pending"
    fail_jobs(graph, "gather")
    assert graph.states["sum"] == "skipped"
    apply_events(graph, JobRetried("y"))
    assert complete_jobs(graph, "y").states["gather"] == "failed"
    apply_events(graph, JobRetried("gather"))
    assert complete_jobs(graph, "gather", "sum").status == "success"


def test_jobs_added_to_a_cancelled_run_are_created_cancelled():
    graph = apply_events(Graph([JobNode("map")]), JobStarted("map"), RunCancelled())
    apply_events(graph, JobCompleted("map", next=JobNode("gather", ("x",)), adds=(JobNode("x"),)))
    assert graph.states == {"map": "completed", "x": "cancelled", "gather": "cancelled"}
    assert graph.status == "cancelled"


def test_a_stale_event_changes_nothing():
    graph = complete_jobs(Graph([JobNode("a")]), "a")
    stale = (
        JobStarted("a"),
        JobCompleted("a"),
        JobFailed("a"),
        JobRequeued("a"),
        JobCancelled("a"),
        RunCancelled(),
        JobFailed("z"),
    )
    for event in stale:
        changes = advance(graph, event)
        assert not changes.moves
        assert changes.status is None


def test_a_long_chain_of_dependents_is_skipped_without_recursion():
    graph = fail_jobs(Graph([JobNode("0"), *(JobNode(str(n), (str(n - 1),)) for n in range(1, 20_000))]), "0")
    assert graph.status == "failure"
    assert set(graph.states.values()) == {"failed", "skipped"}


def test_the_work_is_linear_in_the_edges():
    """With a fan-out and fan-in of ten thousand, the end of a job visits its own edges, not the whole run."""
    width = 10_000
    middle = [JobNode(f"m{n}", ("root",)) for n in range(width)]
    graph = Graph([JobNode("root"), *middle, JobNode("end", tuple(node.id for node in middle))])
    apply_events(graph, JobStarted("root"))
    changes = advance(graph, JobCompleted("root"))
    assert changes.edges_visited == width
    graph.apply(changes)
    edges_visited = 0
    for node in middle:
        apply_events(graph, JobStarted(node.id))
        changes = advance(graph, JobCompleted(node.id))
        edges_visited += changes.edges_visited
        graph.apply(changes)
    assert edges_visited == width
    assert graph.ready() == ["end"]


def test_a_graph_is_built_from_a_runs_jobs():
    jobs = [
        NewJob(id="0-1", type="t", run="0-0"),
        NewJob(id="0-2", type="t", run="0-0", after=("0-1",), when="all_done", soft=True),
    ]
    graph = Graph.of(jobs)
    assert graph.jobs["0-2"].node == JobNode("0-2", ("0-1",), "all_done", soft=True)
