"""What each route does. The table of them is `backstay.server.routes.table`."""
