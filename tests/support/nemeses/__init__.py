"""Faults that races inject: kills, pauses, restarts, cut connections, failovers."""
