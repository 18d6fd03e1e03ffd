"""Real processes with a machine that serves out of order: a race must not let that pass."""

from pathlib import Path

import pytest

from support.race import Race

pytestmark = [pytest.mark.race, pytest.mark.slow]

FAULTY_CONTENDER = str(Path(__file__).with_name("faulty_contender.py"))


@pytest.mark.parametrize("kind", ["youngest first", "second first", "to the tail", "barging"])
def test_a_race_finds_a_machine_that_serves_out_of_order(tmp_path, kind):
    url = f"sqlite:///{tmp_path}/race.db"
    result = Race(url, folder=tmp_path, seconds=3, contender=(FAULTY_CONTENDER, kind)).run()
    print(f"\n{kind}: {result}, the first: {result.violations[:2]}")
    assert result.report.grants > 10
    assert any("past" in said or "lost its rank" in said or "deprived" in said for said in result.violations)
