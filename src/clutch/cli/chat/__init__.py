"""`clutch chat` and `clutch attach`: a conversation with an agent at a terminal.

`terminal` reads keys and draws the screen, `stream` receives events from the gateway; `chat` and `attach` combine them.
"""
