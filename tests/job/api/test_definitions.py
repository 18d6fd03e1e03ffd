"""`@stay.job(...)` and `.options(...)`: options, their validation, shard selection, backoff and trace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import backstay
import backstay.sync
from backstay import ConfigError, Middleware, exponential, fixed
from backstay.job import ids
from backstay.job.api.retry import LONGEST_DELAY, FunctionBackoff
from backstay.job.metadata import Meta, unpack
from backstay.job.model import Concurrency, StartRate, Unique
from backstay.job.store import JOB_STORE


@pytest.fixture
def stay():
    with backstay.sync.Backstay("memory://") as stay:
        yield stay


@pytest.fixture
def resize(stay):
    @stay.job()
    def resize(path: str, size: int = 100) -> str:
        return f"{path}@{size}"

    return resize


def new(job, *args, **kwargs):
    return job.new_job(args, kwargs)


def test_a_job_is_named_after_its_function(stay, resize):
    assert resize.name == "resize"
    assert stay.internals.job_types == {"resize": resize}


def test_the_decorator_without_parentheses_uses_the_defaults(stay):
    @stay.job
    def plain(n: int) -> int:
        return n

    assert plain.name == "plain"
    assert plain(3) == 3
    assert new(plain, 3).queue == "default"


def test_calling_a_job_runs_its_function_in_process(resize):
    assert resize("a.png", size=3) == "a.png@3"
    assert resize.__name__ == "resize"


def test_two_jobs_of_one_name_are_refused(stay, resize):
    with pytest.raises(ConfigError, match=r"two jobs are named 'resize'.*name="):

        @stay.job(name="resize")
        def other() -> None: ...


def test_options_of_the_definition_apply_to_its_jobs(stay):
    @stay.job(
        queue="pics",
        retries=5,
        backoff=exponential(1, max=300, jitter=False),
        timeout=60,
        priority=7,
        labels=["gpu", "big", "gpu"],
        concurrency_key="size:{size}",
        concurrency=2,
        rate="100/minute",
        unique="resize:{path}",
        keep=10,
        keep_failed=timedelta(days=1),
    )
    def resize(path: str, size: int = 100) -> None: ...

    job = new(resize, "a.png")
    assert (job.queue, job.retries, job.priority, job.labels) == ("pics", 5, 7, ("big", "gpu"))
    assert job.concurrency == Concurrency("size:100", 2)
    assert job.rate == StartRate("resize", 600_000, 100)
    assert job.unique == Unique("resize:a.png", "until_done", 0)
    assert (job.keep, job.keep_failed) == (10_000_000, 86_400_000_000)
    assert resize.timeout == 60
    assert job.meta == b""


def test_options_of_a_call_override_the_definition(resize):
    due = datetime(2030, 1, 1, tzinfo=UTC)
    job = new(
        resize.options(delay=10, priority=5, timeout=3, backoff=fixed(2), labels=["gpu"], unique="x:{path}"), "b.png"
    )
    assert (job.delay, job.priority, job.labels, job.unique.key) == (10_000_000, 5, ("gpu",), "x:b.png")
    assert unpack(job.meta) == Meta(timeout=3.0, backoff=fixed(2))
    assert new(resize.options(at=due), "c").due == int(due.timestamp() * 1_000_000)
    assert new(resize, "b.png").delay == 0  # options() does not change the definition


def test_chained_options_are_merged(resize):
    job = new(resize.options(queue="a", delay=5).options(priority=2, at=datetime(2030, 1, 1, tzinfo=UTC)), "x")
    assert (job.queue, job.priority, job.delay) == ("a", 2, 0)
    assert job.due > 0


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        (Unique("k", "until_done", 0), {"unique": "k"}),
        (Unique("k", "until_start", 0), {"unique": "k", "unique_scope": "until_start"}),
        (Unique("k", "window", 60_000_000), {"unique": "k", "unique_window": 60}),
    ],
)
def test_unique_has_three_scopes(resize, scope, given):
    assert new(resize.options(**given), "x").unique == scope


def test_concurrency_without_a_key_is_per_job_type(resize):
    assert new(resize.options(concurrency=3), "x").concurrency == Concurrency("type:resize", 3)
    assert new(resize.options(concurrency_key="k"), "x").concurrency == Concurrency("k", 1)


def test_none_resets_an_option(resize):
    busy = resize.options(unique="k", concurrency=3, rate="1/s")
    job = new(busy.options(unique=None, concurrency=None, concurrency_key=None, rate=None), "x")
    assert (job.unique, job.concurrency, job.rate) == (None, None, None)


@pytest.mark.parametrize("before", [{"concurrency": 3}, {"concurrency": 3, "concurrency_key": "k"}])
def test_concurrency_none_means_no_limit(resize, before):
    assert new(resize.options(**before).options(concurrency=None), "x").concurrency is None


def test_a_burst_without_a_rate_keeps_the_rate(resize):
    rated = resize.options(rate="10/second")
    assert new(rated.options(burst=2), "x").rate == StartRate("resize", 100_000, 2)
    assert new(rated.options(burst=None), "x").rate == new(rated, "x").rate
    with pytest.raises(ConfigError, match="burst= needs rate="):
        rated.options(rate=None, burst=2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - the mistake under test
        ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"priority": 101}, "priority"),
        ({"priority": True}, "priority"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"labels": "gpu"}, r"labels=\['gpu'\]"),
        ({"labels": 3}, "labels must be a list"),
        ({"queue": ""}, "queue"),
        ({"queue": "a\0b"}, "control characters"),
        ({"labels": ["a\x1fb"]}, "control characters"),
        ({"unique": "a\0b"}, "NUL"),
        ({"concurrency_key": "a\0b"}, "NUL"),
        ({"unique": "{unknown}"}, "unknown"),
        ({"unique_scope": "until_start"}, "unique="),
        ({"unique": "k", "unique_scope": "window"}, "unique_window"),
        ({"unique": "k", "unique_scope": "for ever"}, "until_start"),
        ({"concurrency": 0}, "concurrency"),
        ({"rate": "often"}, "100/minute"),
        ({"burst": 3}, "rate="),
        ({"after": [3]}, "handles or ids"),
        ({"after": 3}, "handles or ids"),
        ({"when": "sometimes"}, "all_success"),
        ({"backoff": lambda attempt: attempt}, "definition"),
        ({"colour": "red"}, "no such option"),
        ({"cron": "* * * * *"}, "no such option"),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else None,
)
def test_an_invalid_option_is_refused_at_once(resize, option, message):
    with pytest.raises(ConfigError, match=message):
        resize.options(**option)


@pytest.mark.parametrize("option", ["unique", "concurrency_key"])
def test_a_key_with_a_nul_is_refused_on_every_engine(resize, option):
    with pytest.raises(ConfigError, match="NUL"):
        new(resize.options(**{option: "k:{path}"}), "a\0b")


def test_an_unknown_option_of_a_definition_is_refused(stay):
    with pytest.raises(ConfigError, match=r"delay: no such option of a job"):

        @stay.job(delay=3)
        def wrong() -> None: ...


def test_a_class_cannot_be_a_job(stay):
    with pytest.raises(ConfigError, match="function"):
        stay.job()(dict)


def test_shards_are_refused_without_redis():
    with (
        backstay.sync.Backstay("memory://", shards=4) as stay,
        pytest.raises(ConfigError, match="Redis"),
    ):
        stay.jobs.list()


# ── shard selection ──


class Sharded:
    """A store with eight shards that stores nothing."""

    shards = 8


@pytest.fixture
def sharded(stay):
    stay._core.services.set(JOB_STORE, Sharded())

    @stay.job()
    def work(n: int = 0) -> None: ...

    return work


def shard(job):
    return ids.shard_of(new(job).id)


def test_keys_decide_the_shard_of_a_job(sharded):
    for key in map(str, range(20)):
        home = ids.hash_shard(key, 8)
        assert shard(sharded.options(concurrency_key=key)) == home
        assert shard(sharded.options(unique=key)) == home
        assert shard(sharded.options(concurrency_key=key, unique=key)) == home


def test_the_first_blocker_decides_the_shard_of_a_job_without_keys(sharded):
    assert shard(sharded.options(after=["5-1", "3-1"])) == 5


def test_a_chain_stays_in_its_shard(sharded):
    assert ids.shard_of(sharded.new_job((), {}, chain="6-1").id) == 6


def test_jobs_without_keys_spread_over_all_shards(sharded):
    assert {shard(sharded) for _ in range(400)} == set(range(8))


def test_keys_of_different_shards_are_refused(sharded):
    other = next(key for key in map(str, range(99)) if ids.hash_shard(key, 8) != ids.hash_shard("k", 8))
    with pytest.raises(ConfigError, match=r"a job has one shard.*shards=1"):
        new(sharded.options(concurrency_key="k", unique=other))
    with pytest.raises(ConfigError, match="its chain"):
        sharded.options(unique="k").new_job((), {}, chain=f"{(ids.hash_shard('k', 8) + 1) % 8:x}-1")


# ── retry ──


def test_exponential_grows_to_its_maximum():
    backoff = exponential(1, max=10, jitter=False)
    assert [backoff.delay(n) for n in range(1, 6)] == [1, 2, 4, 8, 10]
    assert backoff.delay(10_000) == 10


def test_jitter_reduces_a_delay_by_up_to_half():
    backoff = exponential(8, max=8)
    delays = [backoff.delay(1) for _ in range(200)]
    assert 4 <= min(delays) < 5
    assert 7 < max(delays) <= 8


def test_a_function_can_be_a_backoff(stay):
    @stay.job(backoff=lambda attempt: attempt * 10)
    def own() -> None: ...

    assert isinstance(own.backoff, FunctionBackoff)
    assert own.backoff.delay(3) == 30


def test_a_number_is_a_fixed_backoff(stay):
    @stay.job(backoff=5)
    def own() -> None: ...

    assert own.backoff == fixed(5)
    assert own.backoff.delay(9) == 5
    assert own.backoff.most == LONGEST_DELAY


@pytest.mark.parametrize("wrong", [{"base": 0}, {"base": 5, "max": 1}, {"factor": 0.5}, {"factor": True}])
def test_an_invalid_backoff_is_refused(wrong):
    with pytest.raises(ConfigError):
        exponential(**{"base": 1, **wrong})


# ── trace context ──


class Note(Middleware):
    def enqueueing(self, type, trace):  # noqa: A002 - the name in Middleware
        trace["tenant"] = f"acme/{type}"


def test_middleware_adds_its_values_to_the_trace(stay, resize):
    stay.use(Note())
    assert unpack(new(resize, "x").meta).trace == {"tenant": "acme/resize"}


def test_use_accepts_only_middleware(stay):
    with pytest.raises(ConfigError, match="Middleware"):
        stay.use(print)


def test_the_opentelemetry_trace_context_is_carried_by_the_job(resize):
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        carried = unpack(new(resize, "x").meta).trace
    assert carried["traceparent"] == f"00-{0xABC:032x}-{0xDEF:016x}-01"
    assert unpack(new(resize, "x").meta).trace == {}
