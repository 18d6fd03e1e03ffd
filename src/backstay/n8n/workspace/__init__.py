"""The workspace: a folder of templates, settings per environment, and built workflows."""
