"""The order checker on simulated races: it accepts the correct machine and finds every faulty one."""

import pytest
from faulty_machines import FAULTY_MACHINES, install_fault
from simulated_race import SECOND, SimulatedRace

OFTEN, RARELY = (5000,), (50_000, SECOND, 5 * SECOND)
FAULTS = {
    "no pauses": {"pauses": 0.0},
    "pauses": {"pauses": 0.04},
    "lost hints and pauses": {"lost_hints": 0.5, "pauses": 0.04},
    "failovers": {"failovers": 5},
    "failovers, lost hints and pauses": {"failovers": 5, "lost_hints": 0.5, "pauses": 0.04},
    "failovers, frequent snapshots": {"failovers": 5, "pauses": 0.04, "intervals": OFTEN},
    "lost replies": {"lost_replies": 0.3, "pauses": 0.02},
    "lost replies, frequent snapshots": {"lost_replies": 0.3, "pauses": 0.02, "intervals": OFTEN},
    "lost replies, rare snapshots": {"lost_replies": 0.3, "pauses": 0.02, "intervals": RARELY},
    "lost hints, rare snapshots": {"lost_hints": 0.5, "pauses": 0.04, "intervals": RARELY},
}


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("permits", [1, 2])
def test_the_checker_reports_no_violation_of_the_correct_machine(permits, faults):
    grants = 0
    for seed in range(8):
        race = SimulatedRace(seed, permits, **FAULTS[faults])
        report = race.run()
        assert report.violations == [], f"seed {seed}"
        grants += report.grants
    assert grants > 100


@pytest.mark.parametrize("kind", FAULTY_MACHINES)
@pytest.mark.parametrize("failovers", [0, 5])
def test_the_checker_finds_every_faulty_machine(monkeypatch, kind, failovers):
    install_fault(kind, monkeypatch.setattr)
    found = [
        bool(SimulatedRace(seed, 1 + seed % 2, failovers=failovers, pauses=0.02).run().violations) for seed in range(10)
    ]
    assert sum(found) >= 5
