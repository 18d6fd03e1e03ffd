"""Records beside jobs and runs: logs, artifacts, workers, cron entries, definitions, tokens."""
