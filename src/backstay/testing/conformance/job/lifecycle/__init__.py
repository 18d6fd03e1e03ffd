"""Tests of a job's life: enqueueing, blockers, finishes, retries, chains, unique keys, cancellation."""
