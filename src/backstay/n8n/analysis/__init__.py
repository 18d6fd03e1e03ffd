"""What a workflow does, read from its nodes, expressions and code."""
