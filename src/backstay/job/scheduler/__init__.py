"""Cron ticks, pruning and what else happens without a worker."""
