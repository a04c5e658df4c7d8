"""External agents as children, over the Agent Client Protocol: each task is a process of its own that we talk to."""

from __future__ import annotations

from clutch.runtimes.acp.runtime import AcpRuntime as AcpRuntime
from clutch.runtimes.acp.settings import AcpAgent as AcpAgent
from clutch.runtimes.acp.settings import chosen as chosen
