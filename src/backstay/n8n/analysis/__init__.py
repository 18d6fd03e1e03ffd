"""Static analysis of workflows: graph, lock state, expressions, and the code of Code nodes."""
