"""The public API of workflows: `stay.workflows`, `stay.runs`, the decorator, run handles, artifacts."""
