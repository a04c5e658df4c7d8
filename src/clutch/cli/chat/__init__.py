"""`clutch chat` and `clutch attach`: a conversation with an agent at a terminal or through a pipe.

`chat` is the entry and the pipe; `conversation` combines the keys and rows of `terminal` with the gateway's events of
`stream`; `message` is what the user may type.
"""
