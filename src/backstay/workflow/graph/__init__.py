"""The reference model of a run: property tests compare every engine's transitions with it."""
