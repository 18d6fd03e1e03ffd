"""Views of runs and jobs: what the API returns of them."""
