"""`clutch.json`: what a person may write there, and how it becomes the settings of a process.

Nothing here starts anything, and no default stands here: they are those of the settings themselves
(`core/policy.py` and the settings of the adapters). The one table of keys is `keys.py`.
"""
