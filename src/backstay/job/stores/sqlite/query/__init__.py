"""Reading jobs without changing them."""
