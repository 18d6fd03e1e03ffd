"""A thread's batch of operations on a Cluster: written to every node first, read from every node then."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from backstay.engine.base import Expired, Op, Scan, steady
from backstay.engine.redis.address import Place
from backstay.engine.redis.encoder import Talk, To
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ASKING, Refusal, refused
from backstay.engine.redis.topology.slots import HEALS, HOPS, PAUSE, WHOLE_MAP, redirect, slot_of
from backstay.errors import BackstayError, Closed, ConfigError, EngineError, EngineUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from backstay.engine.redis.topology.cluster import ClusterEngine


#: The shortest time-out there is.
NO_TIME = 0.001


class Errand:
    """One conversation under way: its next request, and where it was sent on to. `only_at`: there or nowhere."""

    __slots__ = ("asking", "home", "hops", "index", "only_at", "request", "slot", "talk", "to")

    def __init__(self, index: int, talk: Talk, slot: int | None, only_at: Place | None = None) -> None:
        self.index = index
        self.talk = talk
        self.slot = self.home = slot
        self.only_at = self.to = only_at
        self.asking = False
        self.hops = 0
        self.request = b""
        self.go_on(None)

    def go_on(self, reply: Any) -> None:
        """On to the next request. Raises StopIteration at the end, and what the conversation raises."""
        request = self.talk.send(reply)
        slot, self.request = (
            (slot_of(request.key), request.request) if isinstance(request, To) else (self.home, request)
        )
        if slot != self.slot:
            self.slot, self.to, self.asking = slot, self.only_at, False

    @property
    def wire(self) -> list[bytes]:
        return [ASKING, self.request] if self.asking else [self.request]


class Errands:
    """A batch. Answers results or exceptions. With a time-out of its own it takes no longer than that, whatever the
    nodes do, and a silent one gets only its share of the time: the keeper's other leases must not end meanwhile.
    """

    def __init__(self, engine: ClusterEngine, timeout: float | None) -> None:
        self._engine = engine
        self._timeout = timeout
        self._ends = None if timeout is None else steady() + timeout
        self._answers: dict[int, Any] = {}
        self._until = 0.0
        self._looked_again = False

    def run(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            waiting: list[Errand] = []
            for i, op in enumerate(ops):
                try:
                    if type(op) is Scan:
                        self._answers[i] = self._scan(op)
                    else:
                        waiting.append(self._errand(i, op))
                except StopIteration as done:  # it needed nobody
                    self._answers[i] = done.value
                except ConfigError as error:
                    self._answers[i] = error
            while waiting:
                waiting = self._round(waiting)
        except Closed as error:
            return [error] * len(ops)
        return [self._answers[i] for i in range(len(ops))]

    def _errand(self, index: int, op: Op[Any]) -> Errand:
        talks = self._engine.talks
        key = talks.key(op)
        return Errand(index, talks.of(op), slot_of(key) if key is not None else None)

    def _scan(self, op: Scan) -> Any:
        """Every master in turn."""
        found: set[str] = set()
        try:
            self._remap()
        except EngineError as error:
            return error
        for i, place in enumerate(self._engine.map.masters):
            part = Errands(self._engine, self._timeout)
            waiting = [Errand(i, self._engine.talks.of(op), None, place)]
            while waiting:
                waiting = part._round(waiting)
            answer = part._answers[i]
            if isinstance(answer, BaseException):
                return answer
            found.update(answer)
        return sorted(found)

    def _round(self, errands: list[Errand]) -> list[Errand]:
        """Send everything once. Answers what is to be sent again, elsewhere or later."""
        again: list[Errand] = []
        stuck: list[tuple[Errand, EngineError]] = []
        sent: list[tuple[BlockingLink, Place, list[Errand]]] = []
        places = self._by_place(errands, stuck)
        order = self._best_first(places)
        strangers = [place for place in order if not self._engine.has_line(place)]
        for place in order:
            batch = places[place]
            shares = 1 + len(strangers) - strangers.index(place) if place in strangers else 1
            try:
                link = self._engine.thread_link_to(place, self._left(shares))
                link.begin([part for errand in batch for part in errand.wire], self._left())
            except EngineUnavailable as error:
                self._engine.silent_nodes()[place] = steady()
                stuck += [(errand, error) for errand in batch]
            except EngineError as error:
                self._fail(batch, error)
            else:
                sent.append((link, place, batch))
        for link, place, batch in sent:
            try:
                replies = link.finish(sum(len(errand.wire) for errand in batch), self._left())
            except OutcomeUnknown as error:
                self._engine.silent_nodes()[place] = steady()
                self._fail(batch, error)
                continue
            for errand in batch:
                del replies[: len(errand.wire) - 1]
                self._answered(errand, replies.pop(0), link, place, again, stuck)
        if stuck:
            again += self._later(stuck)
        return again

    def _best_first(self, places: Iterable[Place]) -> list[Place]:
        """Nodes to whom this thread has a line, then those that did not fail it, then those that did: connecting to
        one that is silent takes its time.
        """
        silent = self._engine.silent_nodes()
        return sorted(places, key=lambda place: (not self._engine.has_line(place), silent.get(place, 0.0)))

    def _left(self, shares: int = 1) -> float | None:
        """What is left of the batch's time, or a share of it. What has come already can be read without any."""
        return None if self._ends is None else max(NO_TIME, (self._ends - steady()) / shares)

    def _by_place(self, errands: list[Errand], stuck: list[tuple[Errand, EngineError]]) -> dict[Place, list[Errand]]:
        places: dict[Place, list[Errand]] = {}
        engine = self._engine
        for errand in errands:
            try:
                if not engine.map.masters:
                    self._remap()
                places.setdefault(errand.to or engine.located(errand.slot), []).append(errand)
            except EngineUnavailable as error:
                stuck.append((errand, error))
            except EngineError as error:
                self._fail([errand], error)
        return places

    def _answered(
        self,
        errand: Errand,
        reply: Any,
        link: BlockingLink,
        place: Place,
        again: list[Errand],
        stuck: list[tuple[Errand, EngineError]],
    ) -> None:
        if type(reply) is Refusal:
            if to := redirect(reply, place):
                errand.hops += 1
                errand.to, errand.asking = to.place, to.once
                if not to.once:
                    self._engine.map.moved(to)
                if errand.hops > HOPS:
                    self._fail([errand], EngineUnavailable(f"slot {to.slot} is sent from node to node"))
                else:
                    again.append(errand)
                return
            if reply.code in HEALS:
                stuck.append((errand, self._engine.unserved(reply, link, errand.slot)))
                return
        try:
            errand.go_on(reply)
            again.append(errand)
        except StopIteration as done:
            self._answers[errand.index] = done.value
            if type(done.value) is Expired:
                self._engine.told(link, done.value.now)
        except Refusal as refusal:
            self._answers[errand.index] = refused(refusal, link.address)
        except BackstayError as error:  # a record that cannot be read: this operation's trouble alone
            self._answers[errand.index] = error

    def _later(self, stuck: list[tuple[Errand, EngineError]]) -> list[Errand]:
        """Those that found nobody: with a fresh map they try again, until this has lasted too long."""
        bound = [(errand, error) for errand, error in stuck if errand.only_at is not None]
        free = [(errand, error) for errand, error in stuck if errand.only_at is None]
        again: list[Errand] = []
        if free and self._may_wait():
            try:
                self._remap()
            except EngineUnavailable:
                if self._timeout is not None:
                    bound, free = bound + free, []
            except EngineError as trouble:
                bound, free = bound + [(errand, trouble) for errand, _ in free], []
            again = [errand for errand, _ in free]
        else:
            bound += free
        for errand, error in bound:
            self._fail([errand], error)
        for errand in again:
            errand.to, errand.asking = None, False
        if any(errand.slot is None for errand in again):
            self._engine.not_that_one()
        return again

    def _may_wait(self) -> bool:
        engine = self._engine
        if not engine.map.masters:  # before there was a map, waiting would only hide a mistake in the URL
            return False
        if self._timeout is not None:
            # Who brings a time-out comes again by itself: one more try with a fresh map, and no waiting.
            first, self._looked_again = not self._looked_again, True
            return first and (self._left() or 0.0) > NO_TIME
        self._until = self._until or steady() + engine.seeds.failover
        if steady() > self._until:
            return False
        time.sleep(random.uniform(PAUSE / 2, PAUSE))
        return True

    def _remap(self) -> None:
        """Ask any node for the map."""
        engine = self._engine
        troubles: list[EngineError] = []
        for place in self._best_first(engine.guides()):
            try:
                link = engine.thread_link_to(place, self._left(2))
                (reply,) = link.call_many([WHOLE_MAP], self._left(2))
                engine.map.learn(reply, link.address)
            except EngineError as error:
                engine.silent_nodes()[place] = steady()
                troubles.append(error)
            else:
                return
        raise engine.lost(troubles)

    def _fail(self, errands: list[Errand], error: EngineError) -> None:
        for errand in errands:
            self._answers[errand.index] = type(error)(str(error))
