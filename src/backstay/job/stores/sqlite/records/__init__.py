"""Records other than jobs and runs: logs, artifacts, workers, cron entries, definitions, tokens."""
