"""The HTTP layer: routing, admission, requests, responses, problems, SSE, OpenAPI."""
