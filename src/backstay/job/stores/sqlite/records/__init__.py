"""What is stored beside jobs and runs: logs, artifacts, workers, cron, definitions, tokens."""
