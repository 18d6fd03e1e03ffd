"""What a job type and a single call may ask for, as callers write it and as it is used."""

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
from backstay.runtime.validation import Duration, Template, micros

if TYPE_CHECKING:
    from backstay.job.api.handle import BaseHandle

CatchUp = Literal["skip", "one", "all"]
Pool = Literal["thread", "process"]

DAY = 86400.0
RETRIES = 3
MOST_RETRIES = 1_000_000
MOST_LABELS = 32
#: The time limit of a call that asks for none although its definition has one.
ANY_TIME = float("inf")


class Options(TypedDict, total=False):
    """What both a definition and a single call may say."""

    #: Which workers look for it.
    queue: str
    #: Attempts after the first (3).
    retries: int
    #: Seconds between attempts: a number, `exponential(1, max=300)`, or (definitions only) a function of the attempt.
    backoff: BackoffLike
    #: Seconds an attempt may take; None: any time.
    timeout: Duration | None
    #: More is sooner; a point is worth ten minutes of waiting.
    priority: int
    #: What a worker must have, all of it.
    labels: Iterable[str]
    #: At most `concurrency` (1) jobs of this key run at once: "size:{size}". Without a key: of this type.
    concurrency_key: str | None
    concurrency: int | None
    #: At most so many starts of this type in a time, "100/minute"; `burst` of them at once (all of them).
    rate: str | None
    burst: int | None
    #: One job for this key: "resize:{path}"; until it is done, until it starts, or for `unique_window` seconds.
    unique: str | None
    unique_scope: UniqueScope
    unique_window: Duration
    #: Seconds its record stays after it is done (a day), and after it failed (30 days).
    keep: Duration
    keep_failed: Duration


class CallOptions(Options, total=False):
    """What only a single call may say."""

    #: Seconds until it is due; or the moment, with its time zone.
    delay: Duration
    at: datetime
    #: Handles or chain ids of what must end first, and whether it must have completed.
    after: BaseHandle[Any] | str | Iterable[BaseHandle[Any] | str]
    when: When
    #: The caller's own SQL connection: enqueued in its transaction.
    connection: Any


class Definition(Options, total=False):
    """What only a definition may say."""

    #: The function's name unless given. Workers know jobs by it: change it and those enqueued before are strangers.
    name: str
    #: "*/5 * * * *": minute, hour, day, month, weekday, in `timezone` (UTC); what to do with missed moments (one).
    cron: str | None
    timezone: str
    catch_up: CatchUp
    #: Where a function that is not async runs.
    pool: Pool
    #: Bytes of all arguments, and of the result (1 MiB each).
    payload_limit: int
    result_limit: int


class UniquePlan(Struct, frozen=True):
    template: Template
    scope: UniqueScope
    window: Micros


class ConcurrencyPlan(Struct, frozen=True):
    template: Template
    limit: int


class Plan(Struct, frozen=True, kw_only=True):
    """Options, checked and with defaults filled in. Times are µs."""

    queue: str = "default"
    retries: int = RETRIES
    backoff: AnyBackoff = retry.DEFAULT
    timeout: float = 0.0
    priority: int = 0
    labels: tuple[str, ...] = ()
    concurrency: ConcurrencyPlan | None = None
    rate: model.Rate | None = None
    unique: UniquePlan | None = None
    keep: Micros = int(DAY) * 1_000_000
    keep_failed: Micros = 30 * int(DAY) * 1_000_000
    delay: Micros = 0
    due: Micros = 0
    after: tuple[str, ...] = ()
    when: When = "all_success"
    connection: Any = None
    #: What this call alone asked for: it travels with the job.
    own_timeout: float = 0.0
    own_backoff: Backoff | None = None


#: Each option and what makes its fields of a plan, given all options of the call, the plan so far and the function.
_SIMPLE: dict[str, Callable[[Any], Any]] = {}


def plan(
    base: Plan, given: dict[str, Any], name: str, function: Callable[..., Any], *, call: bool, allowed: frozenset[str]
) -> Plan:
    """`base` with what is given. Raises ConfigError, which names the option."""
    if unknown := sorted(set(given) - allowed):
        raise ConfigError(
            f"{', '.join(unknown)}: no such option of {'a call' if call else 'a job'};"
            f" there are {', '.join(sorted(allowed))}"
        )
    new: dict[str, Any] = {}
    for option, check in _SIMPLE.items():
        if option in given:
            new[option] = check(given[option])
    if call and "timeout" in new:
        new["own_timeout"] = new["timeout"] or ANY_TIME
    if call and "backoff" in new:
        if not isinstance(new["backoff"], Backoff):
            raise ConfigError("a function as backoff belongs to the definition; a call takes exponential(…) or seconds")
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
    fields = {field: getattr(base, field) for field in Plan.__struct_fields__}
    return Plan(**{**fields, **new})


def _queue(value: str) -> str:
    return validation.word(value, "queue")


def _timeout(value: Duration | None) -> float:
    return 0.0 if value is None else validation.seconds(value, "timeout")


def _retries(value: int) -> int:
    validation.count(value, "retries", least=0)
    if value > MOST_RETRIES:
        raise ConfigError(f"retries is at most {MOST_RETRIES}; got {value}")
    return value


def _priority(value: int) -> int:
    given = cast("object", value)
    if isinstance(given, bool) or not isinstance(given, int) or not -LARGEST_PRIORITY <= given <= LARGEST_PRIORITY:
        raise ConfigError(f"priority is a whole number from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}; got {value!r}")
    return value


def _labels(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise ConfigError(f"labels is a list, as in labels=['gpu']; got {value!r}")
    labels = tuple(sorted({validation.word(label, "label") for label in value}))
    if len(labels) > MOST_LABELS or any("," in label for label in labels):
        raise ConfigError(f"labels are up to {MOST_LABELS}, without commas; got {labels!r}")
    return labels


def _keep(what: str) -> Callable[[Duration], Micros]:
    return lambda value: micros(validation.seconds(value, what, zero=True))


def _delay(value: Duration) -> Micros:
    seconds = validation.seconds(value, "delay", zero=True)
    return micros(seconds) if seconds else 0


def _after(value: Any) -> tuple[str, ...]:
    alone = isinstance(value, str) or hasattr(value, "chain_id") or not hasattr(value, "__iter__")
    given: list[Any] = [value] if alone else list(value)
    ids: dict[str, None] = {}
    for one in given:
        chain = one if isinstance(one, str) else getattr(one, "chain_id", None)
        if not isinstance(chain, str):
            raise ConfigError(f"after= takes handles or ids, as in after=[handle]; got {type(one).__name__}")
        ids[validation.key(chain, "after")] = None
    return tuple(ids)


def _when(value: When) -> When:
    if value not in get_args(When):
        raise ConfigError(f"when is one of {', '.join(get_args(When))}; got {value!r}")
    return value


def _moment(value: datetime) -> Micros:
    given = cast("object", value)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError(f"at is a datetime with a time zone, as in datetime.now(UTC); got {value!r}")
    return max(int(value.timestamp() * 1_000_000), 1)


_SIMPLE.update(
    queue=_queue,
    retries=_retries,
    backoff=retry.backoff,
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


def _unique(base: Plan, given: dict[str, Any], function: Callable[..., Any]) -> UniquePlan | None:
    text = given.get("unique", base.unique.template.text if base.unique else None)
    if text is None:
        if "unique" not in given:
            raise ConfigError("unique_scope and unique_window go with unique='resize:{path}'")
        return None
    window = micros(validation.seconds(given["unique_window"], "unique_window")) if "unique_window" in given else 0
    before = base.unique.scope if base.unique else "until_done"
    scope = given.get("unique_scope", "window" if window else before)
    if scope not in get_args(UniqueScope):
        raise ConfigError(f"unique_scope is one of {', '.join(get_args(UniqueScope))}; got {scope!r}")
    if scope == "window" and not window:
        window = base.unique.window if base.unique else 0
    if (scope == "window") != bool(window):
        raise ConfigError("unique_scope='window' goes with unique_window=seconds, and the other scopes without")
    return UniquePlan(_template(text, "unique", function), scope, window)


def _concurrency(base: Plan, given: dict[str, Any], name: str, function: Callable[..., Any]) -> ConcurrencyPlan | None:
    limit = given.get("concurrency", base.concurrency.limit if base.concurrency else None)
    key = given.get("concurrency_key", base.concurrency.template.text if base.concurrency else None)
    if limit is None and (key is None or ("concurrency" in given and "concurrency_key" not in given)):
        return None
    if key is None:
        key = "type:" + name.replace("{", "{{").replace("}", "}}")
    checked = validation.count(1 if limit is None else limit, "concurrency")
    return ConcurrencyPlan(_template(key, "concurrency_key", function), checked)


def _rate(base: Plan, given: dict[str, Any], name: str) -> model.Rate | None:
    text, burst = given.get("rate"), given.get("burst")
    if text is not None:
        return rate_of(text, name, burst)
    if burst is None:
        return base.rate if "rate" not in given else None
    if "rate" in given or base.rate is None:
        raise ConfigError("burst= goes with rate=, as in rate='100/minute', burst=10")
    return replace(base.rate, burst=validation.count(burst, "burst"))


def rate_of(text: str, bucket: str, burst: int | None = None) -> model.Rate:
    """A rate as stores read it: "100/minute" lets `burst` (100) start at once, and one more every 0.6 s."""
    rate = parse(text)
    interval = rate.window * 1000 // rate.limit
    if interval < 1:
        raise ConfigError(f"rate {text!r} is more than one job a microsecond; leave it out")
    return model.Rate(bucket, interval, rate.limit if burst is None else validation.count(burst, "burst"))


@lru_cache(maxsize=1024)
def _template(text: str, what: str, function: Callable[..., Any]) -> Template:
    validation.key(text, what)
    return Template(text, function)
