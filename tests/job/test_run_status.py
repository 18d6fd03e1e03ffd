"""The table of a finished run's status."""

from itertools import product

import pytest

from backstay.job.run_status import final_status

#: (a job failed, a job is cancelled, the run's cancellation was requested): the status.
TABLE = {
    (True, True, True): "failure",
    (True, True, False): "failure",
    (True, False, True): "failure",
    (True, False, False): "failure",
    (False, True, True): "cancelled",
    (False, True, False): "cancelled",
    (False, False, True): "cancelled",
    (False, False, False): "success",
}


@pytest.mark.parametrize("number", [1, 7])
def test_the_status_depends_on_whether_jobs_failed_or_were_cancelled(number):
    assert set(TABLE) == set(product((True, False), repeat=3))
    for (failed, cancelled, requested), status in TABLE.items():
        found = final_status(hard_failures=failed * number, cancelled=cancelled * number, cancel_requested=requested)
        assert found == status
