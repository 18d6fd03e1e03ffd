"""The checker against the machine itself on pretended time: it accuses nobody wrongly, and finds every rogue."""

import pytest
from pretend import SECOND, Pretend
from rogues import ROGUES, break_in

TROUBLES = {
    "awake": {"sleepy": 0.0},
    "sleepy": {"sleepy": 0.04},
    "deaf and sleepy": {"deaf": 0.5, "sleepy": 0.04},
    "failovers": {"failovers": 5},
    "failovers, deaf and sleepy": {"failovers": 5, "deaf": 0.5, "sleepy": 0.04},
    "failovers under constant watch": {"failovers": 5, "sleepy": 0.04, "look": (5000,)},
    "mute": {"mute": 0.3, "sleepy": 0.02},
    "mute under constant watch": {"mute": 0.3, "sleepy": 0.02, "look": (5000,)},
    "mute, seldom a look": {"mute": 0.3, "sleepy": 0.02, "look": (50_000, SECOND, 5 * SECOND)},
    "seldom a look": {"deaf": 0.5, "sleepy": 0.04, "look": (50_000, SECOND, 5 * SECOND)},
}


@pytest.mark.parametrize("troubles", TROUBLES)
@pytest.mark.parametrize("permits", [1, 2])
def test_the_machine_serves_in_order_and_is_not_accused(permits, troubles):
    grants = 0
    for seed in range(8):
        race = Pretend(seed, permits, **TROUBLES[troubles])
        report = race.run()
        assert report.violations == [], f"seed {seed}"
        grants += report.grants
    assert grants > 100


@pytest.mark.parametrize("kind", ROGUES)
@pytest.mark.parametrize("failovers", [0, 5])
def test_a_rogue_is_found(monkeypatch, kind, failovers):
    break_in(kind, monkeypatch.setattr)
    found = [bool(Pretend(seed, 1 + seed % 2, failovers=failovers, sleepy=0.02).run().violations) for seed in range(10)]
    assert sum(found) >= 5
