"""The gateway over HTTP on loopback: `routes` lists every path with the scope it needs, `guard` stands before them.

Nothing here is imported before somebody knocks: see `serving`.
"""
