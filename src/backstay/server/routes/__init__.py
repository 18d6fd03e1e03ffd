"""The handlers of all routes. `backstay.server.routes.table` lists the routes."""
