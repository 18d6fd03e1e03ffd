"""What each route does. The table of them is `holdfast.server.table`."""
