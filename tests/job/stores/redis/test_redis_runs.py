"""What only a Redis store can get wrong about runs: keys and slots, what is copied, what is counted, what it costs."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest
from redis_store_client import RedisStoreClient

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError, EngineError, OutcomeUnknown
from backstay.job.ids import shard_of
from backstay.job.model import Concurrency, Failure, Finish, Unique
from backstay.job.run_model import Artifact, NewRun, TokenRecord
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisCluster, RedisServer
from backstay.testing.servers.redis import say

pytestmark = pytest.mark.redis

DAY = 86_400_000_000
BIG_NOW = 1_794_814_854_384_821


@pytest.fixture
def clients(backstay_redis, namespace):
    made = []

    def make(url=backstay_redis.url, **options):
        made.append(RedisStoreClient(url, options.pop("namespace", namespace), **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(clients, backstay_redis):
    """Patient: steps with ten thousand jobs take a busy machine a while."""
    return clients(f"{backstay_redis.url}?timeout=60")


def keys_of(server, namespace):
    return {key.decode() for key in say(server, "KEYS", f"*{namespace}*")}


def run_of(client, edges, shard=0, **fields):
    """A run of jobs by name, each with the names it waits for and, perhaps, more: its id, and the ids of its jobs."""
    id_, ids, jobs = client.ids.new(shard), {}, []
    for name, (after, *more) in edges.items():
        job = client.job(
            shard, run=id_, type=name, after=tuple(ids[other] for other in after), **(more[0] if more else {})
        )
        ids[name] = job.id
        jobs.append(job)
    client.ask("start_run", NewRun(id=id_, workflow="flow", jobs=tuple(jobs), **fields))
    return id_, ids


def fan(client, width, shard=0):
    """One, then many, then one."""
    middle = {f"m{nth}": (["first"],) for nth in range(width)}
    return run_of(client, {"first": ([],), **middle, "last": (list(middle),)}, shard)


def drain(client, shard=0, at_once=100, result=b"r"):
    """Work until nothing is left to be taken; answers what was done, in order."""
    done, finishes = [], []
    while True:
        reply = client.exchange(finishes, shard=shard, want=at_once)
        finishes = [Finish(job=job.id, fence=job.fence, kind="complete", result=result) for job in reply.jobs]
        done += reply.jobs
        if not finishes:
            return done


def states(client, ids):
    return {name: client.ask("get", id_).state for name, id_ in ids.items()}


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


def everything(client, shard=0):
    """One of each: what a run can leave behind in Redis."""
    run, ids = run_of(
        client,
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
    job = next(job for job in client.take(2, shard=shard) if job.id == ids["a"])
    client.ask("append_log", job.id, job.fence, [(1, "stdout", "hello")], 1)
    for part, last in ((0, False), (1, True)):
        client.ask("put_artifact", Artifact(job=job.id, name="f", size=2, digest="d"), job.fence, part, b"x", last=last)
    client.ask("put_artifact", Artifact(job=job.id, name="half", size=9, digest="e"), job.fence, 0, b"x", last=False)
    added, following = client.job(shard, after=(job.id,)), client.job(shard)
    client.end(job, result=b"r", adds=(added,), next=following, outputs={"k": "v"})
    return run


def test_all_keys_of_a_run_share_its_shards_slot(clients, backstay_redis, namespace):
    client = clients(shards=8)
    for shard in range(8):
        run = everything(client, shard)
        assert shard_of(run) == shard
    found = keys_of(backstay_redis, namespace)
    for shard in range(8):
        tag = f"{{{namespace}:s{shard}}}:"
        mine = {key for key in found if key.startswith(tag)}
        assert len(mine) > 20
        assert len({slot_of(key.encode()) for key in mine}) == 1
        found -= mine
    assert not found


def test_definitions_and_tokens_are_stored_in_the_first_shard(clients, backstay_redis, namespace):
    client = clients(shards=8)
    client.ask("put_definition", "flow", "d", b"doc")
    client.ask("put_token", TokenRecord(id="t", digest=b"hash", role="admin"))
    assert {key.partition("}:")[0] for key in keys_of(backstay_redis, namespace)} == {f"{{{namespace}:s0"}


def test_pruning_a_run_deletes_all_its_keys(clients, backstay_redis, namespace):
    client = clients(now=time.time_ns() // 1000)
    run = everything(client)
    client.now += 2000
    drain(client)
    assert client.ask("get_run", run).status == "success"
    client.now += 8 * DAY
    assert client.ask("prune", 0, 0) > 10
    lasting = {key for key in keys_of(backstay_redis, namespace) if say(backstay_redis, "PTTL", key) < 0}
    assert {key.partition("}:")[2] for key in lasting} == {"meta"}
    assert client.ask("list_runs") == []
    assert client.ask("list_jobs") == []


def test_the_page_of_keys_names_them_all():
    page = (Path(__file__).parents[4] / "docs/reference/redis-keys.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z-]+)[:`]", page.partition("## Where")[0]))
    used = set()
    for path in (Path(__file__).parents[4] / "src/backstay/job/stores/redis/lua").rglob("*.lua"):
        used |= set(re.findall(r"(?:SHARD \.\. |each\('[A-Z]+', |fields_of\()'([a-z-]+)", path.read_text("utf-8")))
    assert len(used) > 40
    assert used - named == set()


def test_the_documented_rights_are_sufficient_for_runs():
    page = (Path(__file__).parents[4] / "docs/reference/redis-keys.md").read_text("utf-8")
    rights = page.partition("## Rights")[2].partition("```")[2].partition("```")[0].split()
    base = ["resetchannels", "&backstay:*", "-@all", "+hello", "+auth", "+client|setname", "+info", "+eval", "+evalsha"]
    with RedisServer() as server:
        say(server, "ACL", "SETUSER", "app", "on", ">word", "resetkeys", *base, *rights)
        url = server.url.replace("redis://", "redis://app:word@")
        client = RedisStoreClient(url, "backstay", now=time.time_ns() // 1000)
        run = everything(client)
        client.ask("put_definition", "flow", "d", b"doc")
        client.ask("list_definitions")
        client.ask("put_token", TokenRecord(id="t", digest=b"hash", role="admin"))
        assert client.ask("drop_token", "t")
        client.ask("cancel_run", run, "why")
        client.now += 2000
        drain(client)
        client.ask("rerun_failed", run)
        drain(client)
        assert client.ask("check_runs", 0) == []
        for ends in (Concurrency("few", 1), None):
            for _ in range(3):
                client.add(concurrency=ends, unique=Unique(f"{len(client.ask('list_jobs'))}", "until_done"))
        drain(client, at_once=2)
        client.ask("undelivered", 0)
        client.ask("queues")
        assert client.ask("events", 0, "$").cursor == client.ask("events", 0).cursor
        client.now += 40 * DAY
        assert client.ask("prune", 0, 0) > 10
        client.close()


def test_times_and_numbers_of_a_run_keep_full_precision(clients):
    """Numbers of this size lose their last digits where Lua prints them its own way."""
    client = clients(now=BIG_NOW)
    run, ids = run_of(client, {"a": ([],)}, timeout=7_000_000)
    client.now += 1
    (job,) = client.take()
    client.now += 2
    client.end(job)
    found = client.ask("get_run", run)
    assert (found.created, found.started, found.finished) == (BIG_NOW, BIG_NOW + 1, BIG_NOW + 3)
    assert found.deadline == BIG_NOW + 7_000_000
    assert [event.at - BIG_NOW for event in client.ask("run_events", run)] == [0, 0, 1, 3, 3]
    assert client.ask("list_jobs", run=run)[0].id == ids["a"]


# ── many ──


def test_a_run_of_ten_thousand_jobs_starts_in_one_command_and_finishes(client):
    run, ids = fan(client, 9_998)
    assert client.ask("get_run", run).counts == {"pending": 1, "blocked": 9_999}
    done = drain(client, at_once=1000)
    assert [job.id for job in done] == list(ids.values())
    assert all(job.upstream == {ids["first"]: b"r"} for job in done[1:-1])
    assert done[-1].upstream == dict.fromkeys(list(ids.values())[1:-1], b"r")
    found = client.ask("get_run", run)
    assert (found.status, found.counts) == ("success", {"completed": 10_000})
    events = [event for after in range(0, found.events, 7000) for event in client.ask("run_events", run, after, 7000)]
    assert [event.seq for event in events] == list(range(1, 30_003))


def test_ten_thousand_jobs_are_cancelled_and_retried_in_one_command(client):
    run, ids = fan(client, 9_998)
    client.end(client.take()[0])
    found = client.ask("cancel_run", run, "enough")
    assert (found.status, found.counts) == ("cancelled", {"completed": 1, "cancelled": 9_999})
    assert client.take(10) == ()
    found = client.ask("rerun_failed", run)
    assert (found.status, found.counts) == ("running", {"completed": 1, "pending": 9_998, "blocked": 1})
    assert len(drain(client, at_once=1000)) == 9_999
    assert client.ask("get_run", run).status == "success"
    assert len(client.ask("get", ids["last"]).after) == 9_998


def test_a_run_that_is_too_large_is_refused(client):
    run = client.ids.new(0)
    with pytest.raises(ConfigError, match="at most 20000 are allowed"):
        client.ask("start_run", NewRun(id=run, workflow="w", jobs=tuple(client.job(run=run) for _ in range(20_001))))
    assert client.ask("get_run", run) is None


def test_names_too_long_for_a_record_are_refused(client):
    run, long = client.ids.new(0), "0-" + "1" * 300
    for new in (
        NewRun(id=run, workflow="w", jobs=(client.job(id=long, run=run),)),
        NewRun(id=run, workflow="w" * 70_000),
        NewRun(id=long, workflow="w", jobs=(client.job(run=long),)),
    ):
        with pytest.raises(ConfigError, match="at most"):
            client.ask("start_run", new)
    run_of(client, {"a": ([],)})
    (job,) = client.take()
    with pytest.raises(ConfigError, match="at most"):
        client.end(job, adds=(client.job(id=long),))
    assert client.ask("get", job.id).state == "running"


@pytest.mark.parametrize(("work", "most"), [("plain", 0.25), ("fan", 0.45)])
def test_the_lifecycle_of_a_job_takes_few_redis_commands(client, backstay_redis, work, most):
    """Claim and end in steps of a hundred: what a single job adds is a share of its step's commands, run or not."""
    if work == "plain":
        client.ask("enqueue", 0, [client.job() for _ in range(2000)])
    else:
        fan(client, 2000)
    assert calls_within(backstay_redis, lambda: drain(client)) / 2000 <= most


def test_the_cost_of_a_finish_does_not_grow_with_the_run(client, backstay_redis):
    costs = []
    for width in (20, 2000):
        fan(client, width)
        client.end(client.take()[0])
        first, *_ = client.take(width)
        costs.append(calls_within(backstay_redis, lambda first=first: client.end(first)))
        client.take(width)
    assert costs[0] == costs[1]


def test_a_result_is_not_copied_to_its_dependents(client, backstay_redis, namespace):
    _, ids = fan(client, 100)
    client.end(client.take()[0], result=b"x" * 100_000)
    jobs = client.take(100)
    assert {len(job.upstream[ids["first"]]) for job in jobs} == {100_000}
    found = keys_of(backstay_redis, namespace)
    sizes = [int(say(backstay_redis, "MEMORY", "USAGE", key, "SAMPLES", "0")) for key in found]
    assert sum(sizes) < 500_000


# ── dependents: inside a record, and in separate keys ──


@pytest.mark.parametrize("width", [2, 30])
class TestWaiting:
    def blockers(self, client, width, when, **more):
        names = [f"b{nth}" for nth in range(width)]
        return run_of(client, {**{name: ([], more) for name in names}, "d": (names, {"when": when}), "e": (["d"],)})

    def end_all(self, client, width, *, failing):
        jobs = client.take(width)
        kinds = {job.id: "fail" if nth in failing else "complete" for nth, job in enumerate(jobs)}
        for job in jobs:
            client.end(job, kinds[job.id], error=Failure("E", "x") if kinds[job.id] == "fail" else None)

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
    def test_a_job_starts_or_is_skipped_by_the_outcomes_of_its_blockers(self, client, width, when, failing, becomes):
        _, ids = self.blockers(client, width, when)
        self.end_all(client, width, failing=failing)
        assert client.ask("get", ids["d"]).state == becomes

    def test_soft_failures_do_not_block_dependents(self, client, width):
        run, ids = self.blockers(client, width, "all_success", soft=True)
        self.end_all(client, width, failing=range(width))
        (job,) = client.take(5)
        assert (job.id, set(job.upstream.values())) == (ids["d"], {None})
        client.end(job)
        drain(client)
        assert client.ask("get_run", run).status == "success"

    def test_a_retried_failure_blocks_its_dependents_again(self, client, width):
        run, ids = self.blockers(client, width, "all_success")
        self.end_all(client, width, failing=(0, 1))
        assert client.ask("get_run", run).status == "failure"
        assert client.ask("trigger", ids["b0"]) == "pending"
        assert states(client, {"d": ids["d"], "e": ids["e"]}) == {"d": "skipped", "e": "skipped"}
        assert client.ask("trigger", ids["b1"]) == "pending"
        found = client.ask("get", ids["d"])
        assert (found.state, found.waits_for) == ("blocked", tuple(sorted((ids["b0"], ids["b1"]))))
        assert [job.id for job in drain(client)] == [ids["b0"], ids["b1"], ids["d"], ids["e"]]
        assert client.ask("get_run", run).status == "success"

    def test_an_added_job_finds_its_blockers(self, client, width):
        run, ids = self.blockers(client, width, "all_done")
        first, *rest = client.take(width)
        added = client.job(after=tuple(ids[f"b{nth}"] for nth in range(width)), when="any_failure")
        client.end(rest[-1], "fail", error=Failure("E", "x"))
        client.end(first, adds=(added,))
        found = client.ask("get", added.id)
        assert (found.run, len(found.waits_for)) == (run, width - 2)
        for job in rest[:-1]:
            client.end(job)
        assert client.ask("get", added.id).state == "pending"


def test_a_job_of_another_shard_receives_results_of_run_jobs(clients):
    client = clients(shards=8)
    _, ids = run_of(client, {"a": ([],), "b": ([], {"soft": True})}, shard=3)
    other = client.add(5, after=(ids["a"], ids["b"]))
    for job in client.take(2, shard=3):
        kind = "complete" if job.id == ids["a"] else "fail"
        for each in client.end(job, kind, result=b"r").outbox:
            client.ask("deliver", 5, [each])
    (job,) = client.take(shard=5)
    assert (job.id, job.upstream) == (other, {ids["a"]: b"r", ids["b"]: b""})


# ── lost replies, lost counts ──


def test_a_run_start_whose_reply_was_lost_starts_one_run(backstay_redis, clients):
    with FaultProxy(backstay_redis.port) as proxy:
        client = clients(f"{proxy.url}?timeout=0.5")
        client.add(queue="other")
        run = client.ids.new(0)
        new = NewRun(id=run, workflow="w", doc=b"doc", jobs=(client.job(run=run), client.job(run=run)))
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            client.ask("start_run", new)
        found = client.ask("start_run", new)
        assert (found.doc, found.counts, found.events) == (b"doc", {"pending": 2}, 3)
        assert len(client.ask("list_jobs", run=run)) == 2


def spoil(server, namespace, run, counts):
    """Put other counts into a run's record."""
    key = f"{{{namespace}:s0}}:run"
    raw = bytearray(say(server, "HGET", key, run))
    for place, number in counts.items():
        raw[62 + 4 * place : 66 + 4 * place] = number.to_bytes(4, "big")
    say(server, "HSET", key, run, bytes(raw))


SCHEDULED, BLOCKED, PENDING, RUNNING = range(4)


def test_wrong_counts_are_corrected_and_reported_on_redis(client, backstay_redis, namespace):
    run, _ = fan(client, 5)
    assert client.ask("check_runs", 0) == []
    spoil(backstay_redis, namespace, run, {PENDING: 7, BLOCKED: 0})
    assert client.ask("get_run", run).counts == {"pending": 7}
    assert client.ask("check_runs", 0) == [run]
    assert client.ask("get_run", run).counts == {"pending": 1, "blocked": 6}
    assert client.ask("check_runs", 0) == []


def test_a_run_with_a_missed_end_is_finished_by_the_check(client, backstay_redis, namespace):
    run, _ = run_of(client, {"a": ([],)})
    spoil(backstay_redis, namespace, run, {BLOCKED: 1})
    drain(client)
    assert client.ask("get_run", run).status == "running"
    assert client.ask("check_runs", 0) == [run]
    assert client.ask("get_run", run).status == "success"
    assert client.ask("run_events", run)[-1].kind == "run_finished"


def test_the_check_visits_all_runs_in_turn(client, backstay_redis, namespace):
    runs = [run_of(client, {"a": ([],)})[0] for _ in range(7)]
    spoil(backstay_redis, namespace, runs[-1], {BLOCKED: 1})
    found = [client.ask("check_runs", 0, 2) for _ in range(4)]
    assert [run for each in found for run in each] == [runs[-1]]


# ── events of all runs ──


def test_a_page_of_events_may_end_anywhere(client):
    runs = [fan(client, 12)[0] for _ in range(3)]
    drain(client)
    whole = client.ask("events", 0)
    for size in (1, 5, 7):
        cursor, seen = "", []
        while (page := client.ask("events", 0, cursor, size)).events:
            assert len(page.events) <= size
            seen += page.events
            cursor = page.cursor
        assert tuple(seen) == whole.events
    for run in runs:
        assert [event for event in whole.events if event.run == run] == client.ask("run_events", run)


def test_pruned_runs_do_not_hide_the_remaining_ones(clients):
    client = clients(now=time.time_ns() // 1000)
    start = client.ask("events", 0, "$").cursor
    for _ in range(150):
        run_of(client, {"a": ([],)}, keep=1)
    drain(client)
    kept, _ = run_of(client, {"a": ([],)})
    client.now += 2
    while client.ask("prune", 0, 0):
        pass
    page = client.ask("events", 0, start)
    assert [event.run for event in page.events] == [kept, kept]
    assert client.ask("events", 0, page.cursor) == type(page)((), page.cursor)


# ── a Cluster ──


def test_runs_of_all_shards_of_a_cluster(namespace):
    cluster = RedisCluster(replicas=0, node_timeout=5)
    try:
        started_or_skip(cluster)
        client = RedisStoreClient(cluster.url, namespace, shards=8)
        runs = [fan(client, 20, shard)[0] for shard in range(8)]
        for shard in range(8):
            drain(client, shard)
        assert [run.id for run in client.ask("list_runs")] == runs[::-1]
        assert {run.status for run in client.ask("list_runs", workflow="flow", status="success")} == {"success"}
        assert [len(client.ask("list_jobs", run=run, limit=100)) for run in runs] == [22] * 8
        assert [len(client.ask("events", shard).events) for shard in range(8)] == [68] * 8
        client.ask("put_definition", "flow", "d", b"doc")
        assert client.ask("get_definition", "flow").doc == b"doc"
        client.close()
    finally:
        cluster.stop()


def test_a_server_that_lost_its_data_knows_no_run(namespace):
    with RedisServer() as server:
        client = RedisStoreClient(server.url, namespace)
        run, _ = fan(client, 3)
        cursor = client.ask("events", 0).cursor
        server.restart()
        with contextlib.suppress(EngineError):
            client.ask("get_run", run)
        assert client.ask("get_run", run) is None
        assert client.ask("cancel_run", run, "why") is None
        assert client.ask("rerun_failed", run) is None
        assert client.ask("run_events", run) == []
        fan(client, 3)
        assert len(client.ask("events", 0, cursor).events) == 2
        client.close()


# ── keys of concurrency ──


def test_the_end_of_a_run_whose_jobs_share_a_key_costs_a_few_commands_for_each(client, backstay_redis):
    """Not for each as many as there are: the server does nothing else meanwhile."""
    width = 1000
    run, _ = run_of(client, {f"m{nth}": ([], {"concurrency": Concurrency("few", 1)}) for nth in range(width)})
    client.take(width)  # all but one are parked
    assert calls_within(backstay_redis, lambda: client.ask("cancel_run", run, "no more")) < 20 * width


def test_many_ends_of_one_key_cost_a_few_commands_for_each(client, backstay_redis):
    width, key = 200, Concurrency("few", 200)
    client.ask("enqueue", 0, [client.job(concurrency=key) for _ in range(3 * width)])
    taken = client.take(3 * width)
    assert len(taken) == width
    finishes = [Finish(job=job.id, fence=job.fence, kind="complete") for job in taken]
    assert calls_within(backstay_redis, lambda: client.exchange(finishes)) < 20 * width
