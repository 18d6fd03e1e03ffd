"""Durable jobs: `api/` is the public API, `store.py` the store contract, `worker/` runs jobs, `scheduler/` cron."""
