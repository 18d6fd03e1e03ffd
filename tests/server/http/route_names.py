"""Names and example paths of the routes in the server's route table."""


def name(route):
    return f"{route.method} {route.path}"


def path_of(route):
    """Return the path of a route with a value for each of its parameters."""
    path = route.path
    for parameter in route.parameters:
        path = path.replace(f"{{{parameter}}}", "some-thing")
    return path
