"""`clutch top`: the dashboard in a terminal.

`connection.py` and `tree.py` know what to show, `transcript.py` and `lines.py` turn it into text, and the other modules
draw it with Textual, an optional package that no other command loads."""
