"""What makes a race hard: kills, pauses, restarts, cut connections, failovers."""
