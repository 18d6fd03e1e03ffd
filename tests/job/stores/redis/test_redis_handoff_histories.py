"""Random histories of direct handoffs in which messages and replies are lost: each job completes once."""

from __future__ import annotations

import random

import pytest

from support.store_client import finish

pytestmark = pytest.mark.redis


class Channel:
    """A worker channel like that of `job/worker/channel.py`, whose handoff messages and replies are lost at random."""

    def __init__(self, client, name, inbox, dice):
        self.name, self._inbox, self._client, self._dice = name, inbox, client, dice
        self.seq = self.waiting_seq = 0
        self.running = {}

    def receive_handoffs(self):
        while (handed := self._inbox.receive()) is not None:
            if self._dice.random() < 0.5 and handed.seq == self.waiting_seq:
                self.waiting_seq = 0
                self._start(handed.reply.jobs)

    def _start(self, jobs):
        for job in jobs:
            assert job.id not in self.running
            self.running[job.id] = job

    def exchange(self, finishes, want):
        self.seq += 1
        waiting = self._inbox.waiting() if not self.running and self._dice.random() < 0.8 else None
        self._client.name = self.name
        while True:
            reply = self._client.exchange(finishes, want, seq=self.seq, waiting_seq=self.waiting_seq, waiting=waiting)
            if self._dice.random() < 0.3:
                continue  # the reply is lost
            if reply.handed_off:
                self.waiting_seq = 0
                self._start(reply.jobs)
                want, waiting = max(0, want - len(reply.jobs)), None
                continue
            self.waiting_seq = 0 if waiting is None or reply.jobs else self.seq
            self._start(reply.jobs)
            return reply.verdicts


@pytest.mark.parametrize("seed", range(20))
def test_every_job_completes_once_under_message_loss(client, inboxes, seed):
    dice = random.Random(seed)
    channels = [Channel(client, name, inboxes(), dice) for name in "ab"]
    jobs = []
    done = []
    for _ in range(40):
        client.now += dice.choice((1, 100_000))
        channel = dice.choice(channels)
        match dice.choice(("enqueue", "enqueue", "receive", "exchange", "exchange")):
            case "enqueue":
                new = [client.job() for _ in range(dice.choice((1, 1, 2)))]
                jobs += [made.id for made in client.apply("enqueue", 0, new)]
            case "receive":
                channel.receive_handoffs()
            case _:
                exchange(channel, done, dice.randrange(3), finishes=dice.random() < 0.7)
    for channel in channels * 4:
        exchange(channel, done, 10, finishes=True)
    assert sorted(done) == sorted(jobs)
    assert {client.apply("get", job).attempt for job in jobs} <= {1}


def exchange(channel, done, want, *, finishes):
    """Let a channel claim up to `want` jobs, and with `finishes` complete all its running jobs."""
    finished = list(channel.running.values()) if finishes else []
    for job in finished:
        del channel.running[job.id]
    verdicts = channel.exchange([finish(job) for job in finished], want)
    assert set(verdicts) <= {"ok"}
    done += [job.id for job in finished]
