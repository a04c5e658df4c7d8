"""`clutch acp`: Clutch as an agent of the Agent Client Protocol, so that an editor talks to a durable main agent.

`commands` has the command line, `editor_agent` answers the editor's requests, `editor_session` follows one conversation
at the gateway, `editor_updates` turns its messages and tasks into updates of the protocol, and `editor_decisions` asks
the editor for what waits in the inbox. Only these modules load the library `acp`, when the command runs.
"""
