"""Agent files and skills as they lie on the disk: read, parsed, and handed to sessions. The rules are in
`core/definitions.py`."""
