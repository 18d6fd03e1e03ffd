"""What travels over HTTP as JSON: one struct for each body. Their names are those of the OpenAPI document."""
