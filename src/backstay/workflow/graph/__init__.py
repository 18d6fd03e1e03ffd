"""The reference model of a run: tests hold every engine's transitions to it."""
