"""Locks, semaphores and read-write locks: one machine behind all three."""
