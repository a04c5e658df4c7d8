"""`clutch.json`: its keys, and how it becomes the settings of a process.

This package starts nothing and has no defaults of its own: they are those of the settings (`core/policy.py` and the
settings of the adapters). The table of keys is `keys.py`.
"""
