"""This package chooses the adapters and starts them.

`engine.running_engine` opens store, models and tools, in this order, and starts a worker. `clutch.Clutch` is the public
class.
"""

from __future__ import annotations

from clutch.channels import Webhook
from clutch.models.demo_evidence import findings_of
from clutch.models.provider import AdapterKind, Provider
from clutch.offline_reader import DATABASE_FILE
from clutch.runtimes.acp_process import AcpAgent
from clutch.runtimes.acp_registry import AcpListing, known_listings, registry_listings
from clutch.surfaces.discovery import default_state_directory
from clutch.tools.mcp import McpServer
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from clutch.wiring.clutch import Clutch
from clutch.wiring.engine import (
    Engine,
    ModelTrial,
    SystemClock,
    can_sandbox_files,
    config_problems,
    config_warnings,
    make_private,
    offline_model,
    opened_store,
    running_engine,
    sandbox_offer,
    server_notices,
    try_model,
)

__all__ = [
    "DATABASE_FILE",
    "AcpAgent",
    "AcpListing",
    "AdapterKind",
    "Clutch",
    "Engine",
    "McpServer",
    "ModelTrial",
    "Provider",
    "Sandbox",
    "SystemClock",
    "ToolSettings",
    "Webhook",
    "can_sandbox_files",
    "config_problems",
    "config_warnings",
    "default_state_directory",
    "findings_of",
    "known_listings",
    "make_private",
    "offline_model",
    "opened_store",
    "registry_listings",
    "running_engine",
    "sandbox_offer",
    "server_notices",
    "try_model",
]
