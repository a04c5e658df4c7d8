"""The one place that chooses adapters and starts them.

`engine.running_engine` tells what is built in which order, and each family of adapters has its builder: `store`,
`models`, `tools`, `runtimes`. `clutch.Clutch` is what a program holds.
"""

from __future__ import annotations

from clutch.channels.hooks import Webhook
from clutch.looking import DATABASE_FILE
from clutch.models.evidence import findings_of
from clutch.models.settings import AdapterKind, Provider
from clutch.runtimes.acp import AcpAgent
from clutch.surfaces.address import default_state_directory
from clutch.tools.mcp import McpServer
from clutch.tools.rooms import ToolSettings
from clutch.tools.sandbox.box import Sandbox
from clutch.wiring.clutch import Clutch
from clutch.wiring.engine import Engine, running_engine
from clutch.wiring.models import config_warnings, offline_model
from clutch.wiring.store import SystemClock, make_private, opened_store
from clutch.wiring.tools import can_box_files, sandbox_offer, standard_toolbox

__all__ = [
    "DATABASE_FILE",
    "AcpAgent",
    "AdapterKind",
    "Clutch",
    "Engine",
    "McpServer",
    "Provider",
    "Sandbox",
    "SystemClock",
    "ToolSettings",
    "Webhook",
    "can_box_files",
    "config_warnings",
    "default_state_directory",
    "findings_of",
    "make_private",
    "offline_model",
    "opened_store",
    "running_engine",
    "sandbox_offer",
    "standard_toolbox",
]
