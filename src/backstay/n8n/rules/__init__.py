"""One file for each kind of rule: `RULES` are what it looks for, `check` looks."""
