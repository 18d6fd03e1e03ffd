"""Locks, semaphores and read-write locks, all built on one state machine."""
