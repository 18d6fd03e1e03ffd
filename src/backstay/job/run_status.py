"""The status of a finished run, as a function of its jobs.

| a job failed | a job is cancelled, or the run's cancellation was requested | status |
|---|---|---|
| yes | any | failure |
| no | yes | cancelled |
| no | no | success |

A job counts with the state that it has when the run finishes: a retried job counts with the outcome of its retry. Of a
chain, only the last job counts. Skipped jobs do not count. The failure of a soft job (`continue-on-error`) counts as a
success. It does not matter who cancelled a job: a caller, its own handler or the cancellation of its run. A retry that
reopens a finished run withdraws the request to cancel the run, so from then on only its jobs count.

The SQLite store, the reference model (`workflow/graph`) and the PostgreSQL store call `final_status`; `run_move.sql`
and `_runs.lua` contain the same table. Conformance and property tests compare them.
"""

from __future__ import annotations

from backstay.job.run_model import RunStatus


def final_status(*, hard_failures: int, cancelled: int, cancel_requested: bool) -> RunStatus:
    """Return the status of a run none of whose jobs is open.

    hard_failures: the number of its failed jobs that are not soft.
    cancelled: the number of its cancelled jobs.
    cancel_requested: whether the run itself was cancelled, and not reopened since.
    """
    if hard_failures:
        return "failure"
    return "cancelled" if cancelled or cancel_requested else "success"
