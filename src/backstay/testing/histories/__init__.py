"""Recorded histories of locks and jobs, and the checkers that search them for violations."""
