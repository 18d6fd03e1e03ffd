"""Runs the attempts of jobs: on the event loop, in threads and in child processes."""
