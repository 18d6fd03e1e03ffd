"""A folder of templates, settings and built workflows."""
