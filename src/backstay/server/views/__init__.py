"""Runs and jobs as the API shows them."""
