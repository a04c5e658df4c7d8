"""Who may do what: the tools a session has, the rights a child is born with, and the one guard for verbs.

`tools` knows names, patterns and what a role never gets; `rights` makes a child's rights out of its
parent's and stores them; `guard` answers `can(caller, verb, target)`. None of them looks anything up, and
the caller's identity always comes from the server-side run, never from a parameter.
"""

from __future__ import annotations

from clutch.core.authority.guard import (
    EVERY_SCOPE,
    AgentCaller,
    Allowed,
    Caller,
    Denied,
    OperatorCaller,
    Peers,
    Rule,
    Scope,
    Target,
    Verb,
    Visibility,
    can,
)
from clutch.core.authority.rights import (
    AgentGrant,
    NoSandbox,
    Request,
    Rights,
    child_rights,
    from_json,
    from_text,
    is_within,
    root_rights,
    to_json,
    to_text,
    under_plan,
)
from clutch.core.authority.tools import (
    NEVER_FOR_CHILDREN,
    SESSION_TOOLS,
    Role,
    ToolFilter,
    ToolPolicy,
    canonical,
    matches,
    role,
)

__all__ = [
    "EVERY_SCOPE",
    "NEVER_FOR_CHILDREN",
    "SESSION_TOOLS",
    "AgentCaller",
    "AgentGrant",
    "Allowed",
    "Caller",
    "Denied",
    "NoSandbox",
    "OperatorCaller",
    "Peers",
    "Request",
    "Rights",
    "Role",
    "Rule",
    "Scope",
    "Target",
    "ToolFilter",
    "ToolPolicy",
    "Verb",
    "Visibility",
    "can",
    "canonical",
    "child_rights",
    "from_json",
    "from_text",
    "is_within",
    "matches",
    "role",
    "root_rights",
    "to_json",
    "to_text",
    "under_plan",
]
