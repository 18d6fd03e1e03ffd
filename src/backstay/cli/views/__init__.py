"""How commands show jobs, locks and runs."""
