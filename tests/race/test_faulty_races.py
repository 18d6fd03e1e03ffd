"""A race of real processes whose machine serves waiters out of order reports violations."""

from pathlib import Path

import pytest

from support.races.lock_race import LockRace

pytestmark = [pytest.mark.race, pytest.mark.slow]

FAULTY_CONTENDER = str(Path(__file__).with_name("faulty_contender.py"))


@pytest.mark.parametrize("kind", ["youngest first", "second first", "to the tail", "barging"])
def test_a_race_finds_a_machine_that_serves_out_of_order(tmp_path, kind):
    url = f"sqlite:///{tmp_path}/race.db"
    result = LockRace(url, folder=tmp_path, seconds=3, contender=(FAULTY_CONTENDER, kind)).run()
    print(f"\n{kind}: {result}, the first: {result.violations[:2]}")
    assert result.report.grants > 10
    assert any(word in violation for violation in result.violations for word in ("past", "lost its rank", "deprived"))
