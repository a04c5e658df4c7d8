"""`clutch chat` and `clutch attach`: a person at a terminal, talking to an agent while its children work.

`editor` and `typing` know the keyboard and nothing of agents, `window` the screen, `ear` the gateway; `chatting` and
`attaching` bring them together. `piped` is the same talk for scripts.
"""
