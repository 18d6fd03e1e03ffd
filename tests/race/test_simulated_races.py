"""The order checker on simulated races: it accepts the correct machine and finds every faulty one."""

import pytest
from faulty_machines import FAULTY_MACHINES, install_fault
from simulated_race import SECOND, SimulatedRace

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
def test_the_checker_reports_no_violation_of_the_correct_machine(permits, troubles):
    grants = 0
    for seed in range(8):
        race = SimulatedRace(seed, permits, **TROUBLES[troubles])
        report = race.run()
        assert report.violations == [], f"seed {seed}"
        grants += report.grants
    assert grants > 100


@pytest.mark.parametrize("kind", FAULTY_MACHINES)
@pytest.mark.parametrize("failovers", [0, 5])
def test_the_checker_finds_every_faulty_machine(monkeypatch, kind, failovers):
    install_fault(kind, monkeypatch.setattr)
    found = [
        bool(SimulatedRace(seed, 1 + seed % 2, failovers=failovers, sleepy=0.02).run().violations) for seed in range(10)
    ]
    assert sum(found) >= 5
