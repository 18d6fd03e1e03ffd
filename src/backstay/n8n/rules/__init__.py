"""The rules of `backstay n8n validate`: each module declares its `RULES` and a `check` function that yields
findings.
"""
