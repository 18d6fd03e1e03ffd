"""`@hf.idempotent`: keys from arguments, outcomes rebuilt as the annotation says."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from pydantic import BaseModel

import holdfast
from holdfast import sync
from holdfast.testing.waiting import soon


@dataclasses.dataclass
class Receipt:
    order_id: str
    amount: Decimal
    at: datetime


class Ticket(msgspec.Struct):
    number: int
    raw: bytes = b""


class Parcel(BaseModel):
    weight: float


AT = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def hf(engine_url, connect):
    return connect(engine_url)


def test_a_key_comes_from_the_arguments(hf):
    ran = []

    @hf.idempotent("charge:{order_id}")
    def charge(order_id, amount=5):
        ran.append(order_id)
        return [order_id, amount]

    assert charge("a") == charge(order_id="a") == charge("a", 6) == ["a", 5]
    assert charge("b") == ["b", 5]
    assert ran == ["a", "b"]
    assert charge.__name__ == "charge"


def test_chosen_arguments_must_be_the_same_whenever_the_key_is(hf):
    @hf.idempotent("charge:{order_id}", fingerprint=["amount"])
    def charge(order_id, amount, note=""):
        return amount

    assert charge("a", 5) == charge("a", amount=5, note="again") == 5
    with pytest.raises(holdfast.FingerprintMismatch):
        charge("a", 6)


def test_without_a_key_every_argument_counts(hf):
    ran = []

    @hf.idempotent()
    def charge(order_id, *items, amount=5, **extra):
        ran.append(order_id)
        return len(ran)

    assert charge("a") == charge("a", amount=5) == 1
    assert charge("a", amount=6) == 2
    assert charge("a", 1, 2) == charge("a", 1, 2) == 3
    assert charge("a", note="x") == 4


def test_outcomes_are_rebuilt_as_the_annotation_says(hf):
    @hf.idempotent("receipt:{order_id}")
    def charge(order_id: str) -> Receipt:
        return Receipt(order_id, Decimal("5.10"), AT)

    @hf.idempotent("tickets")
    def tickets() -> list[Ticket]:
        return [Ticket(7, b"\xff")]

    @hf.idempotent("parcel")
    def parcel() -> Parcel:
        return Parcel(weight=1.5)

    @hf.idempotent("whatever")
    def whatever() -> dict[str, object]:
        return {"a": [1]}

    @hf.idempotent("nothing")
    def nothing() -> None:
        return None

    assert charge("a") == charge("a") == Receipt("a", Decimal("5.10"), AT)
    assert tickets() == tickets() == [Ticket(7, b"\xff")]
    assert parcel() == parcel() == Parcel(weight=1.5)
    assert whatever() == whatever() == {"a": [1]}
    assert nothing() is nothing() is None


def test_the_first_caller_gets_what_the_others_get(hf):
    """What only the first would get is found out in production."""
    assert hf.idempotency.run("x", lambda: {"at": AT, "pair": (1, 2), "raw": b"\xff"}) == {
        "at": AT,
        "pair": [1, 2],
        "raw": b"\xff",
    }
    assert hf.idempotency.run("y", lambda: Ticket(7)) == {"number": 7, "raw": b""}


def test_a_codec_of_ones_own(hf):
    class Words:
        def encode(self, value):
            return " ".join(value).encode()

        def decode(self, raw):
            return tuple(raw.decode().split())

    for _ in range(2):
        assert hf.idempotency.run("x", lambda: ("a", "b"), codec=Words()) == ("a", "b")


def test_an_outcome_that_cannot_be_kept_is_told_and_not_run_again(hf):
    """It has run: running it again because of that would be worse."""
    ran = []

    def work():
        ran.append(1)
        return object()

    with pytest.raises(holdfast.ConfigError, match="ran, but what it returned cannot be kept"):
        hf.idempotency.run("x", work)
    with pytest.raises(holdfast.ReplayedFailure, match="cannot be kept"):
        hf.idempotency.run("x", work)
    assert ran == [1]
    assert hf.idempotency.forget("x")
    assert hf.idempotency.run("x", lambda: 1) == 1


@pytest.mark.parametrize("words", ["", "a\ud800b", "x" * 9_000_000], ids=["none", "surrogate", "huge"])
def test_whatever_an_exception_says_is_replayed(hf, words):
    def work():
        raise ValueError(words)

    with pytest.raises(ValueError, match=r"^(|a\ud800b|x+)$"):
        hf.idempotency.run("x", work, on_error="replay")
    with pytest.raises(holdfast.ReplayedFailure) as caught:
        hf.idempotency.run("x", work)
    assert caught.value.kind == "ValueError"
    assert len(caught.value.reason) <= 10_000


def test_an_outcome_that_is_too_large_is_told(hf):
    with pytest.raises(holdfast.ConfigError, match="bytes"):
        hf.idempotency.run("x", lambda: "x" * (8 * 1024 * 1024))


def test_an_outcome_that_the_annotation_does_not_fit_is_told_to_the_first_caller(hf):
    @hf.idempotent("x")
    def work() -> int:
        return "a word"

    with pytest.raises(holdfast.ConfigError, match="ran, but what it returned cannot be rebuilt"):
        work()
    with pytest.raises(holdfast.ReplayedFailure):
        work()


def test_an_outcome_of_another_shape_is_told(hf):
    hf.idempotency.run("x", lambda: "a word")

    def count() -> int:
        return 1

    with pytest.raises(holdfast.CorruptRecord, match="forget"):
        hf.idempotency.run("x", count)


def test_what_cannot_work_is_refused_when_the_function_is_made(hf):
    def work(order_id):
        return order_id

    for options in (
        {"key": "charge:{nobody}"},
        {"key": "x", "fingerprint": ["nobody"]},
        {"key": "x", "fingerprint": "order_id"},
        {"key": "x", "ttl": 0},
        {"key": "x", "on_error": "retry"},
        {"key": "x", "lease": -1},
    ):
        with pytest.raises(holdfast.ConfigError):
            hf.idempotent(**options)(work)
    with pytest.raises(holdfast.ConfigError, match="async"):
        hf.idempotent("x")(asyncio.sleep)


def test_a_generator_is_refused_when_the_function_is_made(hf):
    def numbers(order_id):
        yield order_id

    async def later(order_id):
        yield order_id

    for function in (numbers, later):
        with pytest.raises(holdfast.ConfigError, match="generator"):
            hf.idempotent("x")(function)


def test_an_async_function_in_the_blocking_api_is_refused_and_not_remembered(hf):
    async def work():
        return 1

    with pytest.raises(holdfast.ConfigError, match="async"):
        hf.idempotency.run("x", work)
    assert hf.idempotency.run("x", lambda: "ran") == "ran"


def test_fingerprints_of_pydantic_models(hf):
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Order(pydantic.BaseModel):
        number: int

    @hf.idempotent("pay:{order.number}", fingerprint=["order", "amount"])
    def pay(order, amount):
        return amount

    assert pay(Order(number=1), 5) == pay(Order(number=1), 5) == 5
    with pytest.raises(holdfast.FingerprintMismatch):
        pay(Order(number=1), 6)


def test_an_annotation_that_cannot_be_rebuilt_is_told(hf):
    def work() -> Nowhere:  # noqa: F821 - that is the point
        return 1

    with pytest.raises(holdfast.ConfigError, match="Nowhere"):
        hf.idempotent("x")(work)()


def test_arguments_without_a_fingerprint_are_told(hf):
    @hf.idempotent()
    def charge(connection):
        return 1

    with pytest.raises(holdfast.ConfigError, match="plain data"):
        charge(object())
    recursive = []
    recursive.append(recursive)
    for value in (object(), {1: object()}, recursive, lambda: 1, float):
        with pytest.raises(holdfast.ConfigError, match="fingerprint"):
            hf.idempotency.run("x", lambda: 1, fingerprint=value)
    assert hf.idempotency.inspect("x").state == "idle"


def test_a_key_that_is_empty_or_huge_is_refused_at_the_call(hf):
    @hf.idempotent("{name}")
    def work(name):
        return name

    for name in ("", "x" * 513):
        with pytest.raises(holdfast.ConfigError, match="key"):
            work(name)


def test_a_call_that_waits_for_its_own_key_is_refused(hf):
    with pytest.raises(holdfast.WouldDeadlock, match="its own key"):
        hf.idempotency.run("x", lambda: hf.idempotency.run("x", lambda: 1))
    with hf.lock("x", wait=0):  # a lock of that name is something else
        assert hf.idempotency.run("x", lambda: 1) == 1


def test_async_functions_and_plain_ones_on_the_async_api(engine_url, namespace):
    async def play():
        async with holdfast.Holdfast(engine_url, namespace=namespace) as hf:
            ran = []

            @hf.idempotent("async:{n}")
            async def work(n: int) -> Ticket:
                ran.append(n)
                await asyncio.sleep(0)
                return Ticket(n)

            @hf.idempotent("plain:{n}")
            def plain(n: int) -> Ticket:
                ran.append(n)
                return Ticket(n)

            assert await work(1) == await work(1) == Ticket(1)
            assert await asyncio.gather(*[work(2) for _ in range(20)]) == [Ticket(2)] * 20
            assert await asyncio.to_thread(plain, 3) == await asyncio.to_thread(plain, 3) == Ticket(3)
            assert await hf.idempotency.run("lambda", lambda: 4) == 4
            assert ran == [1, 2, 3]

    asyncio.run(play())


def test_a_cancelled_call_lets_the_next_one_run(engine_url, namespace):
    async def play():
        async with holdfast.Holdfast(engine_url, namespace=namespace) as hf:
            begun = asyncio.Event()

            async def work():
                begun.set()
                await asyncio.sleep(60)

            call = asyncio.create_task(hf.idempotency.run("x", work))
            await begun.wait()
            waiter = asyncio.create_task(hf.idempotency.run("x", lambda: "second"))
            gives_up = asyncio.create_task(hf.idempotency.run("x", lambda: "third"))

            async def both_wait():
                return (await hf.idempotency.inspect("x")).waiters == 2

            assert await soon(both_wait)
            gives_up.cancel()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(5):
                assert await waiter == "second"

    asyncio.run(play())


def test_a_closed_holdfast_says_so(engine_url, namespace):
    hf = sync.Holdfast(engine_url, namespace=namespace).open()
    hf.close()
    for use in (lambda: hf.idempotency.run("x", lambda: 1), lambda: hf.idempotency.inspect("x")):
        with pytest.raises(holdfast.Closed):
            use()
