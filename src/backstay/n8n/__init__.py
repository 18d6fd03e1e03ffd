"""Locks and limits for n8n workflows."""
