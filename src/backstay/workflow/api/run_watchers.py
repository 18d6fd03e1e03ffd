"""Who waits for something to happen in a run, or for its end, in this process: one subscription for all of them.

What happens is announced on `<prefix>:events`, as `<run>:<number of its last event>`; an end on `<prefix>:runc`, too:
whoever waits for that need not look with every step of a run.
"""

from __future__ import annotations

from typing import cast

from backstay.job.api.completion_waiters import Waiters
from backstay.runtime.core import Core


class Watchers(Waiters):
    """One for each Backstay; made by `watchers_of`."""

    channels = ("events",)

    def _named(self, payload: str) -> str:
        return payload.rpartition(":")[0]


class Enders(Waiters):
    """The same for ends; made by `enders_of`."""

    channels = ("runc",)


def watchers_of(core: Core) -> Watchers:
    """The Backstay's own. A forked child begins with new ones."""
    watchers = core.notes.get("workflow.watchers")
    if watchers is None:
        watchers = core.notes["workflow.watchers"] = Watchers(core)
    return cast("Watchers", watchers)


def enders_of(core: Core) -> Enders:
    """The Backstay's own, as above."""
    enders = core.notes.get("workflow.enders")
    if enders is None:
        enders = core.notes["workflow.enders"] = Enders(core)
    return cast("Enders", enders)
