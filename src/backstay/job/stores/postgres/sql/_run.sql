id, workflow, version, status, created, started, finished, deadline, cancelling, reason, events, scheduled, blocked,
pending, running, completed, failed, cancelled, skipped
