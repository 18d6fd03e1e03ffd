"""Where jobs are stored: one package per engine."""
