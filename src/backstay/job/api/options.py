"""Options of job definitions and single calls: the types that callers use, and their validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Micros
from backstay.errors import ConfigError
from backstay.job import model
from backstay.job.api import retry
from backstay.job.api.retry import AnyBackoff, Backoff, BackoffLike
from backstay.job.model import LARGEST_PRIORITY, UniqueScope, When
from backstay.runtime import validation
from backstay.runtime.rate import parse
from backstay.runtime.validation import Duration, KeyTemplate, to_micros

if TYPE_CHECKING:
    from backstay.job.api.handle import BaseHandle

CatchUp = Literal["skip", "one", "all"]
Pool = Literal["thread", "process"]

DAY = 86400.0
RETRIES = 3
MOST_RETRIES = 1_000_000
MOST_LABELS = 32
#: The time limit that is stored with a job whose enqueue call set `timeout=None` (no limit). A stored 0 means that the
#: call set no `timeout`, so that the limit of the job's definition applies.
ANY_TIME = float("inf")


class Options(TypedDict, total=False):
    """Options that a job definition and a single enqueue call both accept."""

    #: The queue from which workers claim the job.
    queue: str
    #: Attempts after the first; default 3.
    retries: int
    #: Seconds between attempts: a number, `exponential(1, max=300)`, or (definitions only) a function of the attempt.
    backoff: BackoffLike
    #: Time limit of an attempt in seconds; None: no limit.
    timeout: Duration | None
    #: A higher priority starts sooner; one point equals ten minutes of waiting.
    priority: int
    #: A worker claims the job only if it has all of these labels.
    labels: Iterable[str]
    #: Jobs with the same key share the limit `concurrency`. In a key such as "size:{size}", `{size}` stands for the
    #: value of the argument `size`.
    concurrency_key: str | None
    #: How many jobs with the same `concurrency_key` run at once (default 1). Without a key, it limits all jobs of the
    #: type.
    concurrency: int | None
    #: How many jobs of this type start in a period, as in "100/minute".
    rate: str | None
    #: How many jobs of this type may start at once (default: the number in `rate`, which is 100 in "100/minute").
    burst: int | None
    #: A key that only one job holds at a time: while it does, no other job with this key is enqueued. In
    #: "resize:{path}", `{path}` stands for the value of the argument `path`.
    unique: str | None
    #: How long a job keeps its unique key: until it is done ("until_done", default), until it starts ("until_start"),
    #: or for `unique_window` seconds after it is enqueued ("window").
    unique_scope: UniqueScope
    #: Seconds for which a job keeps its unique key. Only for the scope "window".
    unique_window: Duration
    #: Seconds for which the record of a completed, cancelled or skipped job is stored after its end (default a day).
    keep: Duration
    #: Seconds for which the record of a failed job is stored after its end (default 30 days).
    keep_failed: Duration


class CallOptions(Options, total=False):
    """Options of a single enqueue call."""

    #: The job is due this many seconds after it is enqueued.
    delay: Duration
    #: The job is due at this time, which must have a time zone. It cannot be combined with `delay`.
    at: datetime
    #: Handles or chain ids: this job starts only after these chains have ended.
    after: BaseHandle[Any] | str | Iterable[BaseHandle[Any] | str]
    #: Which final states the chains in `after` must have for this job to start. If they have others, this job is
    #: skipped. `When` lists the values.
    when: When
    #: The caller's own SQL connection. The job is enqueued as part of the transaction that is open on it.
    connection: Any


class DefinitionOptions(Options, total=False):
    """Options of a job definition: `@stay.job(…)`."""

    #: The name of the job type; default: the function's name. Workers find the function by this name. After a change of
    #: the name, they cannot run the jobs that were enqueued under the old one.
    name: str
    #: A cron expression, as in "*/5 * * * *": when the job is enqueued automatically.
    cron: str | None
    #: The time zone of `cron` (default UTC).
    timezone: str
    #: Which of the times that were missed, because no scheduler ran, are made up for: "skip" (none), "one" (the latest;
    #: default) or "all".
    catch_up: CatchUp
    #: Whether a function that is not async runs in a thread or in a child process.
    pool: Pool
    #: Largest encoded size of all arguments together, in bytes (default 1 MiB).
    payload_limit: int
    #: Largest encoded size of the result, in bytes (default 1 MiB).
    result_limit: int


class ResolvedUnique(Struct, frozen=True):
    template: KeyTemplate
    scope: UniqueScope
    window: Micros


class ResolvedConcurrency(Struct, frozen=True):
    template: KeyTemplate
    limit: int


class ResolvedOptions(Struct, frozen=True, kw_only=True):
    """Validated options; an option that is not given has its default. Times are µs, except `timeout` and `own_timeout`,
    which are seconds.
    """

    queue: str = "default"
    retries: int = RETRIES
    backoff: AnyBackoff = retry.DEFAULT
    timeout: float = 0.0
    priority: int = 0
    labels: tuple[str, ...] = ()
    concurrency: ResolvedConcurrency | None = None
    rate: model.StartRate | None = None
    unique: ResolvedUnique | None = None
    keep: Micros = int(DAY) * 1_000_000
    keep_failed: Micros = 30 * int(DAY) * 1_000_000
    delay: Micros = 0
    due: Micros = 0
    after: tuple[str, ...] = ()
    when: When = "all_success"
    connection: Any = None
    #: The time limit that a single enqueue call sets for its job; 0: the call sets none. It is stored with the job,
    #: because the worker knows only the limit in the job's definition.
    own_timeout: float = 0.0
    #: The backoff that a single enqueue call sets for its job; None: the call sets none. It is stored with the job,
    #: because the worker knows only the backoff in the job's definition.
    own_backoff: Backoff | None = None


#: For each option that is validated independently of the others, the function that validates it.
_SIMPLE: dict[str, Callable[[Any], Any]] = {}


def resolve_options(
    base: ResolvedOptions,
    given: dict[str, Any],
    name: str,
    function: Callable[..., Any],
    *,
    call: bool,
    allowed: frozenset[str],
) -> ResolvedOptions:
    """Return `base` with the given options, validated. Raises ConfigError, which names the invalid option."""
    if unknown := sorted(set(given) - allowed):
        raise ConfigError(
            f"{', '.join(unknown)}: no such option of {'a call' if call else 'a job'};"
            f" the options are {', '.join(sorted(allowed))}"
        )
    new: dict[str, Any] = {}
    for option, check in _SIMPLE.items():
        if option in given:
            new[option] = check(given[option])
    if call and "timeout" in new:
        new["own_timeout"] = new["timeout"] or ANY_TIME
    if call and "backoff" in new:
        if not isinstance(new["backoff"], Backoff):
            raise ConfigError("only a definition takes a function as backoff; pass exponential(…) or seconds to a call")
        new["own_backoff"] = new["backoff"]
    if given.keys() & {"unique", "unique_scope", "unique_window"}:
        new["unique"] = _unique(base, given, function)
    if given.keys() & {"concurrency", "concurrency_key"}:
        new["concurrency"] = _concurrency(base, given, name, function)
    if given.keys() & {"rate", "burst"}:
        new["rate"] = _rate(base, given, name)
    if "delay" in given and "at" in given:
        raise ConfigError("pass delay=seconds or at=datetime, not both")
    if "at" in given:
        new["due"] = _moment(given["at"])
        new["delay"] = 0
    if "delay" in given:
        new["due"] = 0
    fields = {field: getattr(base, field) for field in ResolvedOptions.__struct_fields__}
    return ResolvedOptions(**{**fields, **new})


def _queue(value: str) -> str:
    return validation.check_label(value, "queue")


def _timeout(value: Duration | None) -> float:
    return 0.0 if value is None else validation.to_seconds(value, "timeout")


def _retries(value: int) -> int:
    validation.check_count(value, "retries", least=0)
    if value > MOST_RETRIES:
        raise ConfigError(f"retries must be at most {MOST_RETRIES}; got {value}")
    return value


def _priority(value: int) -> int:
    given = cast("object", value)
    if isinstance(given, bool) or not isinstance(given, int) or not -LARGEST_PRIORITY <= given <= LARGEST_PRIORITY:
        raise ConfigError(f"priority must be an integer from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}; got {value!r}")
    return value


def _labels(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise ConfigError(f"labels must be a list, as in labels=['gpu']; got {value!r}")
    labels = tuple(sorted({validation.check_label(label, "label") for label in value}))
    if len(labels) > MOST_LABELS or any("," in label for label in labels):
        raise ConfigError(f"a job takes at most {MOST_LABELS} labels, none with a comma; got {labels!r}")
    return labels


def _keep(what: str) -> Callable[[Duration], Micros]:
    return lambda value: to_micros(validation.to_seconds(value, what, zero=True))


def _delay(value: Duration) -> Micros:
    seconds = validation.to_seconds(value, "delay", zero=True)
    return to_micros(seconds) if seconds else 0


def _after(value: Any) -> tuple[str, ...]:
    alone = isinstance(value, str) or hasattr(value, "chain_id") or not hasattr(value, "__iter__")
    given: list[Any] = [value] if alone else list(value)
    ids: dict[str, None] = {}
    for one in given:
        chain = one if isinstance(one, str) else getattr(one, "chain_id", None)
        if not isinstance(chain, str):
            raise ConfigError(f"after= takes handles or ids, as in after=[handle]; got {type(one).__name__}")
        ids[validation.check_key(chain, "after")] = None
    return tuple(ids)


def _when(value: When) -> When:
    if value not in get_args(When):
        raise ConfigError(f"when must be one of {', '.join(get_args(When))}; got {value!r}")
    return value


def _moment(value: datetime) -> Micros:
    given = cast("object", value)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError(f"at must be a datetime with a time zone, as in datetime.now(UTC); got {value!r}")
    return max(int(value.timestamp() * 1_000_000), 1)


_SIMPLE.update(
    queue=_queue,
    retries=_retries,
    backoff=retry.to_backoff,
    timeout=_timeout,
    priority=_priority,
    labels=_labels,
    keep=_keep("keep"),
    keep_failed=_keep("keep_failed"),
    delay=_delay,
    after=_after,
    when=_when,
    connection=lambda value: value,
)


def _unique(base: ResolvedOptions, given: dict[str, Any], function: Callable[..., Any]) -> ResolvedUnique | None:
    text = given.get("unique", base.unique.template.text if base.unique else None)
    if text is None:
        if "unique" not in given:
            raise ConfigError("unique_scope and unique_window need unique, as in unique='resize:{path}'")
        return None
    window = (
        to_micros(validation.to_seconds(given["unique_window"], "unique_window")) if "unique_window" in given else 0
    )
    before = base.unique.scope if base.unique else "until_done"
    scope = given.get("unique_scope", "window" if window else before)
    if scope not in get_args(UniqueScope):
        raise ConfigError(f"unique_scope must be one of {', '.join(get_args(UniqueScope))}; got {scope!r}")
    if scope == "window" and not window:
        window = base.unique.window if base.unique else 0
    if (scope == "window") != bool(window):
        raise ConfigError("unique_scope='window' needs unique_window=seconds; the other scopes do not take it")
    return ResolvedUnique(_template(text, "unique", function), scope, window)


def _concurrency(
    base: ResolvedOptions, given: dict[str, Any], name: str, function: Callable[..., Any]
) -> ResolvedConcurrency | None:
    limit = given.get("concurrency", base.concurrency.limit if base.concurrency else None)
    key = given.get("concurrency_key", base.concurrency.template.text if base.concurrency else None)
    if limit is None and (key is None or ("concurrency" in given and "concurrency_key" not in given)):
        return None
    if key is None:
        key = "type:" + name.replace("{", "{{").replace("}", "}}")
    checked = validation.check_count(1 if limit is None else limit, "concurrency")
    return ResolvedConcurrency(_template(key, "concurrency_key", function), checked)


def _rate(base: ResolvedOptions, given: dict[str, Any], name: str) -> model.StartRate | None:
    text, burst = given.get("rate"), given.get("burst")
    if text is not None:
        return parse_start_rate(text, name, burst)
    if burst is None:
        return base.rate if "rate" not in given else None
    if "rate" in given or base.rate is None:
        raise ConfigError("burst= needs rate=, as in rate='100/minute', burst=10")
    return replace(base.rate, burst=validation.check_count(burst, "burst"))


def parse_start_rate(text: str, bucket: str, burst: int | None = None) -> model.StartRate:
    """Parse a rate for the store. "100/minute" means: `burst` jobs (default 100) may start at once, and one more every
    0.6 s. `bucket`: all jobs whose rate has the same bucket share the limit.
    """
    rate = parse(text)
    interval = rate.window * 1000 // rate.limit
    if interval < 1:
        raise ConfigError(f"rate {text!r} exceeds one job per microsecond; leave it out")
    return model.StartRate(bucket, interval, rate.limit if burst is None else validation.check_count(burst, "burst"))


@lru_cache(maxsize=1024)
def _template(text: str, what: str, function: Callable[..., Any]) -> KeyTemplate:
    validation.check_key(text, what)
    return KeyTemplate(text, function)
