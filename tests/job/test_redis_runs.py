"""What only a Redis store can get wrong about runs: keys and slots, what is copied, what is counted, what it costs."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest
from redis_desk import RedisDesk

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError, EngineError, OutcomeUnknown
from backstay.job.ids import shard_of
from backstay.job.model import Concurrency, Failure, Finish, Unique
from backstay.job.run_model import Artifact, NewRun, TokenRecord
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.redis_server import say
from backstay.testing.servers import RedisCluster, RedisServer

pytestmark = pytest.mark.redis

DAY = 86_400_000_000
BIG_NOW = 1_794_814_854_384_821


@pytest.fixture
def desks(backstay_redis, namespace):
    made = []

    def make(url=backstay_redis.url, **options):
        made.append(RedisDesk(url, options.pop("namespace", namespace), **options))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


@pytest.fixture
def desk(desks, backstay_redis):
    """Patient: steps with ten thousand jobs take a busy machine a while."""
    return desks(f"{backstay_redis.url}?timeout=60")


def keys_of(server, namespace):
    return {key.decode() for key in say(server, "KEYS", f"*{namespace}*")}


def run_of(desk, edges, shard=0, **fields):
    """A run of jobs by name, each with the names it waits for and, perhaps, more: its id, and the ids of its jobs."""
    id_, ids, jobs = desk.ids.new(shard), {}, []
    for name, (after, *more) in edges.items():
        job = desk.job(
            shard, run=id_, type=name, after=tuple(ids[other] for other in after), **(more[0] if more else {})
        )
        ids[name] = job.id
        jobs.append(job)
    desk.ask("start_run", NewRun(id=id_, workflow="flow", jobs=tuple(jobs), **fields))
    return id_, ids


def fan(desk, width, shard=0):
    """One, then many, then one."""
    middle = {f"m{nth}": (["first"],) for nth in range(width)}
    return run_of(desk, {"first": ([],), **middle, "last": (list(middle),)}, shard)


def drain(desk, shard=0, at_once=100, result=b"r"):
    """Work until nothing is left to be taken; answers what was done, in order."""
    done, finishes = [], []
    while True:
        reply = desk.step(finishes, shard=shard, want=at_once)
        finishes = [Finish(job=job.id, fence=job.fence, kind="complete", result=result) for job in reply.jobs]
        done += reply.jobs
        if not finishes:
            return done


def states(desk, ids):
    return {name: desk.ask("get", id_).state for name, id_ in ids.items()}


def calls(server):
    """How often each command was carried out, by scripts or otherwise."""
    said = say(server, "INFO", "commandstats").decode()
    return {name: int(number) for name, number in re.findall(r"cmdstat_([^:]+):calls=(\d+)", said)}


def calls_within(server, work):
    before = calls(server)
    work()
    after = calls(server)
    return sum(after[name] - before.get(name, 0) for name in after if name not in ("evalsha", "eval", "info"))


# ── keys ──


def everything(desk, shard=0):
    """One of each: what a run can leave behind in Redis."""
    run, ids = run_of(
        desk,
        {
            "a": ([],),
            "late": ([], {"delay": 1000}),
            **{f"b{nth}": (["a"],) for nth in range(12)},
            "many": ([f"b{nth}" for nth in range(12)], {"when": "all_done"}),
            "wide": (["a", "late", *(f"b{nth}" for nth in range(12)), "many"], {"when": "any_failure"}),
            "most": (["a", "late", *(f"b{nth}" for nth in range(12)), "many", "wide"], {"when": "all_done"}),
        },
        shard,
        timeout=60_000_000,
    )
    job = next(job for job in desk.take(2, shard=shard) if job.id == ids["a"])
    desk.ask("append_log", job.id, job.fence, [(1, "stdout", "hello")], 1)
    for part, last in ((0, False), (1, True)):
        desk.ask("put_artifact", Artifact(job=job.id, name="f", size=2, digest="d"), job.fence, part, b"x", last=last)
    desk.ask("put_artifact", Artifact(job=job.id, name="half", size=9, digest="e"), job.fence, 0, b"x", last=False)
    added, following = desk.job(shard, after=(job.id,)), desk.job(shard)
    desk.end(job, result=b"r", adds=(added,), next=following, outputs={"k": "v"})
    return run


def test_all_keys_of_a_run_share_its_shards_slot(desks, backstay_redis, namespace):
    desk = desks(shards=8)
    for shard in range(8):
        run = everything(desk, shard)
        assert shard_of(run) == shard
    found = keys_of(backstay_redis, namespace)
    for shard in range(8):
        tag = f"{{{namespace}:s{shard}}}:"
        mine = {key for key in found if key.startswith(tag)}
        assert len(mine) > 20
        assert len({slot_of(key.encode()) for key in mine}) == 1
        found -= mine
    assert not found


def test_definitions_and_tokens_lie_in_the_first_shard(desks, backstay_redis, namespace):
    desk = desks(shards=8)
    desk.ask("put_definition", "flow", "d", b"doc")
    desk.ask("put_token", TokenRecord(id="t", digest=b"hash", role="admin"))
    assert {key.partition("}:")[0] for key in keys_of(backstay_redis, namespace)} == {f"{{{namespace}:s0"}


def test_every_key_of_a_run_goes_with_it(desks, backstay_redis, namespace):
    desk = desks(now=time.time_ns() // 1000)
    run = everything(desk)
    desk.now += 2000
    drain(desk)
    assert desk.ask("get_run", run).status == "success"
    desk.now += 8 * DAY
    assert desk.ask("prune", 0, 0) > 10
    lasting = {key for key in keys_of(backstay_redis, namespace) if say(backstay_redis, "PTTL", key) < 0}
    assert {key.partition("}:")[2] for key in lasting} == {"meta"}
    assert desk.ask("list_runs") == []
    assert desk.ask("list_jobs") == []


def test_the_page_of_keys_names_them_all():
    page = (Path(__file__).parents[2] / "docs/reference/redis-keys.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z-]+)[:`]", page.partition("## Where")[0]))
    used = set()
    for path in (Path(__file__).parents[2] / "src/backstay/job/stores/redis/lua").rglob("*.lua"):
        used |= set(re.findall(r"(?:SHARD \.\. |each\('[A-Z]+', |fields_of\()'([a-z-]+)", path.read_text("utf-8")))
    assert len(used) > 40
    assert used - named == set()


def test_a_user_with_the_rights_that_the_page_names_and_no_others():
    page = (Path(__file__).parents[2] / "docs/reference/redis-keys.md").read_text("utf-8")
    rights = page.partition("## Rights")[2].partition("```")[2].partition("```")[0].split()
    base = ["resetchannels", "&backstay:*", "-@all", "+hello", "+auth", "+client|setname", "+info", "+eval", "+evalsha"]
    with RedisServer() as server:
        say(server, "ACL", "SETUSER", "app", "on", ">word", "resetkeys", *base, *rights)
        url = server.url.replace("redis://", "redis://app:word@")
        desk = RedisDesk(url, "backstay", now=time.time_ns() // 1000)
        run = everything(desk)
        desk.ask("put_definition", "flow", "d", b"doc")
        desk.ask("list_definitions")
        desk.ask("put_token", TokenRecord(id="t", digest=b"hash", role="admin"))
        assert desk.ask("drop_token", "t")
        desk.ask("cancel_run", run, "why")
        desk.now += 2000
        drain(desk)
        desk.ask("rerun_failed", run)
        drain(desk)
        assert desk.ask("check_runs", 0) == []
        for ends in (Concurrency("few", 1), None):
            for _ in range(3):
                desk.add(concurrency=ends, unique=Unique(f"{len(desk.ask('list_jobs'))}", "until_done"))
        drain(desk, at_once=2)
        desk.ask("undelivered", 0)
        desk.ask("queues")
        assert desk.ask("events", 0, "$").cursor == desk.ask("events", 0).cursor
        desk.now += 40 * DAY
        assert desk.ask("prune", 0, 0) > 10
        desk.close()


def test_times_and_numbers_of_a_run_keep_all_their_digits(desks):
    """Numbers of this size lose their last digits where Lua prints them its own way."""
    desk = desks(now=BIG_NOW)
    run, ids = run_of(desk, {"a": ([],)}, timeout=7_000_000)
    desk.now += 1
    (job,) = desk.take()
    desk.now += 2
    desk.end(job)
    found = desk.ask("get_run", run)
    assert (found.created, found.started, found.finished) == (BIG_NOW, BIG_NOW + 1, BIG_NOW + 3)
    assert found.deadline == BIG_NOW + 7_000_000
    assert [event.at - BIG_NOW for event in desk.ask("run_events", run)] == [0, 0, 1, 3, 3]
    assert desk.ask("list_jobs", run=run)[0].id == ids["a"]


# ── many ──


def test_a_run_of_ten_thousand_jobs_begins_in_one_step_and_ends(desk):
    run, ids = fan(desk, 9_998)
    assert desk.ask("get_run", run).counts == {"pending": 1, "blocked": 9_999}
    done = drain(desk, at_once=1000)
    assert [job.id for job in done] == list(ids.values())
    assert all(job.upstream == {ids["first"]: b"r"} for job in done[1:-1])
    assert done[-1].upstream == dict.fromkeys(list(ids.values())[1:-1], b"r")
    found = desk.ask("get_run", run)
    assert (found.status, found.counts) == ("success", {"completed": 10_000})
    events = [event for after in range(0, found.events, 7000) for event in desk.ask("run_events", run, after, 7000)]
    assert [event.seq for event in events] == list(range(1, 30_003))


def test_ten_thousand_jobs_are_cancelled_and_begun_again_in_one_step(desk):
    run, ids = fan(desk, 9_998)
    desk.end(desk.take()[0])
    found = desk.ask("cancel_run", run, "enough")
    assert (found.status, found.counts) == ("cancelled", {"completed": 1, "cancelled": 9_999})
    assert desk.take(10) == ()
    found = desk.ask("rerun_failed", run)
    assert (found.status, found.counts) == ("running", {"completed": 1, "pending": 9_998, "blocked": 1})
    assert len(drain(desk, at_once=1000)) == 9_999
    assert desk.ask("get_run", run).status == "success"
    assert len(desk.ask("get", ids["last"]).after) == 9_998


def test_a_run_that_is_too_large_is_refused(desk):
    run = desk.ids.new(0)
    with pytest.raises(ConfigError, match="20000 is the most"):
        desk.ask("start_run", NewRun(id=run, workflow="w", jobs=tuple(desk.job(run=run) for _ in range(20_001))))
    assert desk.ask("get_run", run) is None


def test_names_that_records_have_no_room_for_are_refused(desk):
    run, long = desk.ids.new(0), "0-" + "1" * 300
    for new in (
        NewRun(id=run, workflow="w", jobs=(desk.job(id=long, run=run),)),
        NewRun(id=run, workflow="w" * 70_000),
        NewRun(id=long, workflow="w", jobs=(desk.job(run=long),)),
    ):
        with pytest.raises(ConfigError, match="at most"):
            desk.ask("start_run", new)
    run_of(desk, {"a": ([],)})
    (job,) = desk.take()
    with pytest.raises(ConfigError, match="at most"):
        desk.end(job, adds=(desk.job(id=long),))
    assert desk.ask("get", job.id).state == "running"


@pytest.mark.parametrize(("work", "most"), [("plain", 0.25), ("fan", 0.45)])
def test_a_jobs_way_through_redis_takes_few_commands(desk, backstay_redis, work, most):
    """Claim and end in steps of a hundred: what a single job adds is a share of its step's commands, run or not."""
    if work == "plain":
        desk.ask("enqueue", 0, [desk.job() for _ in range(2000)])
    else:
        fan(desk, 2000)
    assert calls_within(backstay_redis, lambda: drain(desk)) / 2000 <= most


def test_an_end_in_a_large_run_costs_what_it_costs_in_a_small_one(desk, backstay_redis):
    costs = []
    for width in (20, 2000):
        fan(desk, width)
        desk.end(desk.take()[0])
        first, *_ = desk.take(width)
        costs.append(calls_within(backstay_redis, lambda first=first: desk.end(first)))
        desk.take(width)
    assert costs[0] == costs[1]


def test_a_result_is_not_copied_to_those_who_wait_for_it(desk, backstay_redis, namespace):
    _, ids = fan(desk, 100)
    desk.end(desk.take()[0], result=b"x" * 100_000)
    jobs = desk.take(100)
    assert {len(job.upstream[ids["first"]]) for job in jobs} == {100_000}
    found = keys_of(backstay_redis, namespace)
    sizes = [int(say(backstay_redis, "MEMORY", "USAGE", key, "SAMPLES", "0")) for key in found]
    assert sum(sizes) < 500_000


# ── those who wait: in a record, and in keys of their own ──


@pytest.mark.parametrize("width", [2, 30])
class TestWaiting:
    def blockers(self, desk, width, when, **more):
        names = [f"b{nth}" for nth in range(width)]
        return run_of(desk, {**{name: ([], more) for name in names}, "d": (names, {"when": when}), "e": (["d"],)})

    def end_all(self, desk, width, *, failing):
        jobs = desk.take(width)
        kinds = {job.id: "fail" if nth in failing else "complete" for nth, job in enumerate(jobs)}
        for job in jobs:
            desk.end(job, kinds[job.id], error=Failure("E", "x") if kinds[job.id] == "fail" else None)

    @pytest.mark.parametrize(
        ("when", "failing", "becomes"),
        [
            ("all_success", (), "pending"),
            ("all_success", (1,), "skipped"),
            ("all_done", (0, 1), "pending"),
            ("any_failure", (), "skipped"),
            ("any_failure", (1,), "pending"),
        ],
    )
    def test_a_job_starts_or_is_skipped_by_what_the_others_came_to(self, desk, width, when, failing, becomes):
        _, ids = self.blockers(desk, width, when)
        self.end_all(desk, width, failing=failing)
        assert desk.ask("get", ids["d"]).state == becomes

    def test_soft_failures_hold_nobody_up(self, desk, width):
        run, ids = self.blockers(desk, width, "all_success", soft=True)
        self.end_all(desk, width, failing=range(width))
        (job,) = desk.take(5)
        assert (job.id, set(job.upstream.values())) == (ids["d"], {None})
        desk.end(job)
        drain(desk)
        assert desk.ask("get_run", run).status == "success"

    def test_what_failed_begins_again_and_the_rest_waits_for_it(self, desk, width):
        run, ids = self.blockers(desk, width, "all_success")
        self.end_all(desk, width, failing=(0, 1))
        assert desk.ask("get_run", run).status == "failure"
        assert desk.ask("trigger", ids["b0"]) == "pending"
        assert states(desk, {"d": ids["d"], "e": ids["e"]}) == {"d": "skipped", "e": "skipped"}
        assert desk.ask("trigger", ids["b1"]) == "pending"
        found = desk.ask("get", ids["d"])
        assert (found.state, found.waits_for) == ("blocked", tuple(sorted((ids["b0"], ids["b1"]))))
        assert [job.id for job in drain(desk)] == [ids["b0"], ids["b1"], ids["d"], ids["e"]]
        assert desk.ask("get_run", run).status == "success"

    def test_a_job_that_is_added_finds_those_it_waits_for(self, desk, width):
        run, ids = self.blockers(desk, width, "all_done")
        first, *rest = desk.take(width)
        added = desk.job(after=tuple(ids[f"b{nth}"] for nth in range(width)), when="any_failure")
        desk.end(rest[-1], "fail", error=Failure("E", "x"))
        desk.end(first, adds=(added,))
        found = desk.ask("get", added.id)
        assert (found.run, len(found.waits_for)) == (run, width - 2)
        for job in rest[:-1]:
            desk.end(job)
        assert desk.ask("get", added.id).state == "pending"


def test_a_job_of_another_shard_hears_of_a_runs_job(desks):
    desk = desks(shards=8)
    _, ids = run_of(desk, {"a": ([],), "b": ([], {"soft": True})}, shard=3)
    other = desk.add(5, after=(ids["a"], ids["b"]))
    for job in desk.take(2, shard=3):
        kind = "complete" if job.id == ids["a"] else "fail"
        for each in desk.end(job, kind, result=b"r").outbox:
            desk.ask("deliver", 5, [each])
    (job,) = desk.take(shard=5)
    assert (job.id, job.upstream) == (other, {ids["a"]: b"r", ids["b"]: b""})


# ── lost replies, lost counts ──


def test_a_run_whose_beginning_was_not_answered_is_begun_once(backstay_redis, desks):
    with FaultProxy(backstay_redis.port) as proxy:
        desk = desks(f"{proxy.url}?timeout=0.5")
        desk.add(queue="other")
        run = desk.ids.new(0)
        new = NewRun(id=run, workflow="w", doc=b"doc", jobs=(desk.job(run=run), desk.job(run=run)))
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            desk.ask("start_run", new)
        found = desk.ask("start_run", new)
        assert (found.doc, found.counts, found.events) == (b"doc", {"pending": 2}, 3)
        assert len(desk.ask("list_jobs", run=run)) == 2


def spoil(server, namespace, run, counts):
    """Put other counts into a run's record."""
    key = f"{{{namespace}:s0}}:run"
    raw = bytearray(say(server, "HGET", key, run))
    for place, number in counts.items():
        raw[62 + 4 * place : 66 + 4 * place] = number.to_bytes(4, "big")
    say(server, "HSET", key, run, bytes(raw))


SCHEDULED, BLOCKED, PENDING, RUNNING = range(4)


def test_counts_that_are_wrong_are_set_right_and_said(desk, backstay_redis, namespace):
    run, _ = fan(desk, 5)
    assert desk.ask("check_runs", 0) == []
    spoil(backstay_redis, namespace, run, {PENDING: 7, BLOCKED: 0})
    assert desk.ask("get_run", run).counts == {"pending": 7}
    assert desk.ask("check_runs", 0) == [run]
    assert desk.ask("get_run", run).counts == {"pending": 1, "blocked": 6}
    assert desk.ask("check_runs", 0) == []


def test_a_run_that_missed_its_end_is_ended(desk, backstay_redis, namespace):
    run, _ = run_of(desk, {"a": ([],)})
    spoil(backstay_redis, namespace, run, {BLOCKED: 1})
    drain(desk)
    assert desk.ask("get_run", run).status == "running"
    assert desk.ask("check_runs", 0) == [run]
    assert desk.ask("get_run", run).status == "success"
    assert desk.ask("run_events", run)[-1].kind == "run_finished"


def test_all_runs_are_looked_at_in_turn(desk, backstay_redis, namespace):
    runs = [run_of(desk, {"a": ([],)})[0] for _ in range(7)]
    spoil(backstay_redis, namespace, runs[-1], {BLOCKED: 1})
    found = [desk.ask("check_runs", 0, 2) for _ in range(4)]
    assert [run for each in found for run in each] == [runs[-1]]


# ── events of all runs ──


def test_a_page_of_events_may_end_anywhere(desk):
    runs = [fan(desk, 12)[0] for _ in range(3)]
    drain(desk)
    whole = desk.ask("events", 0)
    for size in (1, 5, 7):
        cursor, seen = "", []
        while (page := desk.ask("events", 0, cursor, size)).events:
            assert len(page.events) <= size
            seen += page.events
            cursor = page.cursor
        assert tuple(seen) == whole.events
    for run in runs:
        assert [event for event in whole.events if event.run == run] == desk.ask("run_events", run)


def test_runs_that_are_gone_leave_no_hole_before_those_that_are_not(desks):
    desk = desks(now=time.time_ns() // 1000)
    start = desk.ask("events", 0, "$").cursor
    for _ in range(150):
        run_of(desk, {"a": ([],)}, keep=1)
    drain(desk)
    kept, _ = run_of(desk, {"a": ([],)})
    desk.now += 2
    while desk.ask("prune", 0, 0):
        pass
    page = desk.ask("events", 0, start)
    assert [event.run for event in page.events] == [kept, kept]
    assert desk.ask("events", 0, page.cursor) == type(page)((), page.cursor)


# ── a Cluster ──


def test_runs_of_all_shards_of_a_cluster(namespace):
    cluster = RedisCluster(replicas=0, node_timeout=5)
    try:
        started_or_skip(cluster)
        desk = RedisDesk(cluster.url, namespace, shards=8)
        runs = [fan(desk, 20, shard)[0] for shard in range(8)]
        for shard in range(8):
            drain(desk, shard)
        assert [run.id for run in desk.ask("list_runs")] == runs[::-1]
        assert {run.status for run in desk.ask("list_runs", workflow="flow", status="success")} == {"success"}
        assert [len(desk.ask("list_jobs", run=run, limit=100)) for run in runs] == [22] * 8
        assert [len(desk.ask("events", shard).events) for shard in range(8)] == [68] * 8
        desk.ask("put_definition", "flow", "d", b"doc")
        assert desk.ask("get_definition", "flow").doc == b"doc"
        desk.close()
    finally:
        cluster.stop()


def test_a_server_that_lost_everything_knows_no_run(namespace):
    with RedisServer() as server:
        desk = RedisDesk(server.url, namespace)
        run, _ = fan(desk, 3)
        cursor = desk.ask("events", 0).cursor
        server.restart()
        with contextlib.suppress(EngineError):
            desk.ask("get_run", run)
        assert desk.ask("get_run", run) is None
        assert desk.ask("cancel_run", run, "why") is None
        assert desk.ask("rerun_failed", run) is None
        assert desk.ask("run_events", run) == []
        fan(desk, 3)
        assert len(desk.ask("events", 0, cursor).events) == 2
        desk.close()


# ── keys of concurrency ──


def test_the_end_of_a_run_whose_jobs_share_a_key_costs_a_few_commands_for_each(desk, backstay_redis):
    """Not for each as many as there are: the server does nothing else meanwhile."""
    width = 1000
    run, _ = run_of(desk, {f"m{nth}": ([], {"concurrency": Concurrency("few", 1)}) for nth in range(width)})
    desk.take(width)  # all but one are parked
    assert calls_within(backstay_redis, lambda: desk.ask("cancel_run", run, "no more")) < 20 * width


def test_many_ends_of_one_key_cost_a_few_commands_for_each(desk, backstay_redis):
    width, key = 200, Concurrency("few", 200)
    desk.ask("enqueue", 0, [desk.job(concurrency=key) for _ in range(3 * width)])
    taken = desk.take(3 * width)
    assert len(taken) == width
    finishes = [Finish(job=job.id, fence=job.fence, kind="complete") for job in taken]
    assert calls_within(backstay_redis, lambda: desk.step(finishes)) < 20 * width
