"""What users call: `stay.workflows`, `stay.runs`, the decorator, handles, artifacts."""
