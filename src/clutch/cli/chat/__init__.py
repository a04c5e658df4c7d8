"""`clutch chat` and `clutch attach`: a conversation with an agent at a terminal or through a pipe.

`chat` is the entry and the pipe. `session` is the conversation with a main agent, `conversation` what it has in common
with an attached task. Both combine the keys and rows of `terminal` with the gateway's events of `stream`; `markdown`
draws answers, `activity` makes the lines about tools and subagents, `panel` is what stands under the prompt, `message`
is what the user may type.
"""
