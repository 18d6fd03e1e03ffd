"""Recorded histories of locks and jobs, and the checkers that judge them."""
