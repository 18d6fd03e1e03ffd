"""HTTP itself: routing, authentication, requests, problems, SSE, OpenAPI."""
