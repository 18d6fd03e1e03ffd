"""JSON bodies and query parameters of the HTTP API, one struct each. The OpenAPI document uses their class names."""
