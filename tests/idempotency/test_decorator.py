"""`@stay.idempotent`: keys from arguments, outcomes decoded by the return annotation."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from pydantic import BaseModel

import backstay
from backstay import sync
from backstay.testing.waiting import soon


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
def stay(engine_url, connect):
    return connect(engine_url)


def test_a_key_comes_from_the_arguments(stay):
    ran = []

    @stay.idempotent("charge:{order_id}")
    def charge(order_id, amount=5):
        ran.append(order_id)
        return [order_id, amount]

    assert charge("a") == charge(order_id="a") == charge("a", 6) == ["a", 5]
    assert charge("b") == ["b", 5]
    assert ran == ["a", "b"]
    assert charge.__name__ == "charge"


def test_a_key_with_another_fingerprint_is_refused(stay):
    @stay.idempotent("charge:{order_id}", fingerprint=["amount"])
    def charge(order_id, amount, note=""):
        return amount

    assert charge("a", 5) == charge("a", amount=5, note="again") == 5
    with pytest.raises(backstay.FingerprintMismatch):
        charge("a", 6)


def test_without_a_key_template_every_argument_is_part_of_the_key(stay):
    ran = []

    @stay.idempotent()
    def charge(order_id, *items, amount=5, **extra):
        ran.append(order_id)
        return len(ran)

    assert charge("a") == charge("a", amount=5) == 1
    assert charge("a", amount=6) == 2
    assert charge("a", 1, 2) == charge("a", 1, 2) == 3
    assert charge("a", note="x") == 4


def test_outcomes_are_decoded_as_the_return_annotation_says(stay):
    @stay.idempotent("receipt:{order_id}")
    def charge(order_id: str) -> Receipt:
        return Receipt(order_id, Decimal("5.10"), AT)

    @stay.idempotent("tickets")
    def tickets() -> list[Ticket]:
        return [Ticket(7, b"\xff")]

    @stay.idempotent("parcel")
    def parcel() -> Parcel:
        return Parcel(weight=1.5)

    @stay.idempotent("whatever")
    def whatever() -> dict[str, object]:
        return {"a": [1]}

    @stay.idempotent("nothing")
    def nothing() -> None:
        return None

    assert charge("a") == charge("a") == Receipt("a", Decimal("5.10"), AT)
    assert tickets() == tickets() == [Ticket(7, b"\xff")]
    assert parcel() == parcel() == Parcel(weight=1.5)
    assert whatever() == whatever() == {"a": [1]}
    assert nothing() is nothing() is None


def test_the_first_caller_gets_the_decoded_outcome_too(stay):
    """Otherwise a type that only the first call returns would be noticed in production."""
    assert stay.idempotency.run("x", lambda: {"at": AT, "pair": (1, 2), "raw": b"\xff"}) == {
        "at": AT,
        "pair": [1, 2],
        "raw": b"\xff",
    }
    assert stay.idempotency.run("y", lambda: Ticket(7)) == {"number": 7, "raw": b""}


def test_a_custom_codec_is_used(stay):
    class Words:
        def encode(self, value):
            return " ".join(value).encode()

        def decode(self, raw):
            return tuple(raw.decode().split())

    for _ in range(2):
        assert stay.idempotency.run("x", lambda: ("a", "b"), codec=Words()) == ("a", "b")


def test_an_outcome_that_cannot_be_stored_raises_and_is_not_run_again(stay):
    """The function has run: a second run would be worse than the error."""
    ran = []

    def work():
        ran.append(1)
        return object()

    with pytest.raises(backstay.ConfigError, match="ran, but its result cannot be stored"):
        stay.idempotency.run("x", work)
    with pytest.raises(backstay.ReplayedFailure, match="cannot be stored"):
        stay.idempotency.run("x", work)
    assert ran == [1]
    assert stay.idempotency.forget("x")
    assert stay.idempotency.run("x", lambda: 1) == 1


@pytest.mark.parametrize("words", ["", "a\ud800b", "x" * 9_000_000], ids=["none", "surrogate", "huge"])
def test_any_exception_text_is_replayed(stay, words):
    def work():
        raise ValueError(words)

    with pytest.raises(ValueError, match=r"^(|a\ud800b|x+)$"):
        stay.idempotency.run("x", work, on_error="replay")
    with pytest.raises(backstay.ReplayedFailure) as caught:
        stay.idempotency.run("x", work)
    assert caught.value.kind == "ValueError"
    assert len(caught.value.reason) <= 10_000


def test_an_outcome_that_is_too_large_raises(stay):
    with pytest.raises(backstay.ConfigError, match="bytes"):
        stay.idempotency.run("x", lambda: "x" * (8 * 1024 * 1024))


def test_an_outcome_that_does_not_fit_the_annotation_raises_for_the_first_caller(stay):
    @stay.idempotent("x")
    def work() -> int:
        return "a word"

    with pytest.raises(backstay.ConfigError, match="ran, but its result cannot be decoded again"):
        work()
    with pytest.raises(backstay.ReplayedFailure):
        work()


def test_a_stored_outcome_of_another_type_raises(stay):
    stay.idempotency.run("x", lambda: "a word")

    def count() -> int:
        return 1

    with pytest.raises(backstay.CorruptRecord, match="forget"):
        stay.idempotency.run("x", count)


def test_invalid_options_are_refused_when_the_function_is_decorated(stay):
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
        with pytest.raises(backstay.ConfigError):
            stay.idempotent(**options)(work)
    with pytest.raises(backstay.ConfigError, match="async"):
        stay.idempotent("x")(asyncio.sleep)


def test_a_generator_is_refused_when_it_is_decorated(stay):
    def numbers(order_id):
        yield order_id

    async def later(order_id):
        yield order_id

    for function in (numbers, later):
        with pytest.raises(backstay.ConfigError, match="generator"):
            stay.idempotent("x")(function)


def test_an_async_function_in_the_blocking_api_is_refused_and_not_recorded(stay):
    async def work():
        return 1

    with pytest.raises(backstay.ConfigError, match="async"):
        stay.idempotency.run("x", work)
    assert stay.idempotency.run("x", lambda: "ran") == "ran"


def test_pydantic_models_have_fingerprints(stay):
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Order(pydantic.BaseModel):
        number: int

    @stay.idempotent("pay:{order.number}", fingerprint=["order", "amount"])
    def pay(order, amount):
        return amount

    assert pay(Order(number=1), 5) == pay(Order(number=1), 5) == 5
    with pytest.raises(backstay.FingerprintMismatch):
        pay(Order(number=1), 6)


def test_an_unresolvable_annotation_raises(stay):
    def work() -> Nowhere:  # noqa: F821 - an unresolvable annotation on purpose
        return 1

    with pytest.raises(backstay.ConfigError, match="Nowhere"):
        stay.idempotent("x")(work)()


def test_an_argument_without_a_fingerprint_raises(stay):
    @stay.idempotent()
    def charge(connection):
        return 1

    with pytest.raises(backstay.ConfigError, match="plain data"):
        charge(object())
    recursive = []
    recursive.append(recursive)
    for value in (object(), {1: object()}, recursive, lambda: 1, float):
        with pytest.raises(backstay.ConfigError, match="fingerprint"):
            stay.idempotency.run("x", lambda: 1, fingerprint=value)
    assert stay.idempotency.inspect("x").state == "idle"


def test_a_key_that_is_empty_or_huge_is_refused_at_the_call(stay):
    @stay.idempotent("{name}")
    def work(name):
        return name

    for name in ("", "x" * 513):
        with pytest.raises(backstay.ConfigError, match="key"):
            work(name)


def test_a_call_that_waits_for_its_own_key_is_refused(stay):
    with pytest.raises(backstay.WouldDeadlock, match="its own key"):
        stay.idempotency.run("x", lambda: stay.idempotency.run("x", lambda: 1))
    with stay.lock("x", wait=0):  # a lock of the same name is independent
        assert stay.idempotency.run("x", lambda: 1) == 1


def test_the_async_api_decorates_async_and_blocking_functions(engine_url, namespace):
    async def scenario():
        async with backstay.Backstay(engine_url, namespace=namespace) as stay:
            ran = []

            @stay.idempotent("async:{n}")
            async def work(n: int) -> Ticket:
                ran.append(n)
                await asyncio.sleep(0)
                return Ticket(n)

            @stay.idempotent("plain:{n}")
            def plain(n: int) -> Ticket:
                ran.append(n)
                return Ticket(n)

            assert await work(1) == await work(1) == Ticket(1)
            assert await asyncio.gather(*[work(2) for _ in range(20)]) == [Ticket(2)] * 20
            assert await asyncio.to_thread(plain, 3) == await asyncio.to_thread(plain, 3) == Ticket(3)
            assert await stay.idempotency.run("lambda", lambda: 4) == 4
            assert ran == [1, 2, 3]

    asyncio.run(scenario())


def test_a_cancelled_call_lets_the_next_one_run(engine_url, namespace):
    async def scenario():
        async with backstay.Backstay(engine_url, namespace=namespace) as stay:
            begun = asyncio.Event()

            async def work():
                begun.set()
                await asyncio.sleep(60)

            call = asyncio.create_task(stay.idempotency.run("x", work))
            await begun.wait()
            waiter = asyncio.create_task(stay.idempotency.run("x", lambda: "second"))
            gives_up = asyncio.create_task(stay.idempotency.run("x", lambda: "third"))

            async def both_wait():
                return (await stay.idempotency.inspect("x")).waiters == 2

            assert await soon(both_wait)
            gives_up.cancel()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(5):
                assert await waiter == "second"

    asyncio.run(scenario())


def test_a_call_on_a_closed_backstay_raises_closed(engine_url, namespace):
    stay = sync.Backstay(engine_url, namespace=namespace).open()
    stay.close()
    for use in (lambda: stay.idempotency.run("x", lambda: 1), lambda: stay.idempotency.inspect("x")):
        with pytest.raises(backstay.Closed):
            use()
