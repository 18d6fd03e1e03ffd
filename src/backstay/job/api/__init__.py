"""What users call: definitions, handles, `stay.jobs`, transactions."""
