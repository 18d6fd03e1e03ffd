"""The commands and command groups of `backstay`. A new group is one module and one line here.

A command imports optional packages only when it runs, so that `backstay --help` works without them.
"""

from __future__ import annotations

import typer

from backstay.cli.commands import (
    doctor,
    hub,
    idempotency,
    jobs,
    limits,
    lock,
    locks,
    migrate,
    queues,
    run,
    runs,
    scheduler,
    serve,
    token,
    worker,
    workflows,
)
from backstay.cli.commands.n8n import group as n8n

#: `backstay NAME VERB …`
GROUPS: tuple[tuple[str, typer.Typer], ...] = (
    ("locks", locks.app),
    ("limits", limits.app),
    ("idempotency", idempotency.app),
    ("hub", hub.app),
    ("jobs", jobs.app),
    ("queues", queues.app),
    ("token", token.app),
    ("workflows", workflows.app),
    ("runs", runs.app),
    ("n8n", n8n.app),
)


def register(app: typer.Typer) -> None:
    """Add every command and group to the root."""
    app.command("lock")(lock.lock)
    app.command("run")(run.run)
    app.command("worker")(worker.worker)
    app.command("serve")(serve.serve)
    app.command("scheduler")(scheduler.scheduler)
    app.command("doctor")(doctor.doctor)
    app.command("migrate")(migrate.migrate)
    for name, group in GROUPS:
        app.add_typer(group, name=name)
