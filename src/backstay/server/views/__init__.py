"""Views of runs and jobs: how the API shows them."""
