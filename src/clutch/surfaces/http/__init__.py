"""The HTTP API of a gateway: `app` has the table of routes, `auth` checks each request before it reaches them.

`surfaces/listen.py` imports this package when the first connection arrives.
"""
