"""Everything a config can say, as the process takes it. A default `Settings()` is a Clutch without a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clutch.channels.hooks import Webhook
from clutch.channels.webhook import WebhookChannel
from clutch.core.checks import check
from clutch.core.policy import Policy
from clutch.models.settings import Provider
from clutch.runtimes.acp.settings import AcpAgent
from clutch.surfaces.listening import Listening
from clutch.tools.rooms import ToolSettings


@dataclass(frozen=True, slots=True)
class Settings:
    policy: Policy = field(default_factory=Policy)
    tools: ToolSettings = field(default_factory=ToolSettings)
    providers: tuple[Provider, ...] = ()  #: endpoints of your own, and limits or keys of well-known ones
    hooks: tuple[Webhook, ...] = ()  #: webhooks that hear of subagents
    channels: tuple[WebhookChannel, ...] = ()  #: people a route can name: `NAME`, or `NAME:` and whom there
    acp: tuple[AcpAgent, ...] = ()  #: external agents that children may be; the first is the one `acp` means
    #: a PostgreSQL; null = SQLite in the state directory
    database: str | None = field(default=None, repr=False)
    listening: Listening = field(default_factory=Listening)

    def __post_init__(self) -> None:
        check(self)


def get(settings: Any, path: str) -> Any:
    for part in path.split("."):
        settings = settings[part] if isinstance(settings, Mapping) else getattr(settings, part)
    return settings


def put(settings: Any, path: str, value: Any) -> Any:
    """With this one value changed. Raises InvalidInput where a setting refuses it."""
    name, _, rest = path.partition(".")
    changed = put(get(settings, name), rest, value) if rest else value
    return (
        {**settings, name: changed} if isinstance(settings, Mapping) else replace(settings, **{name: changed})
    )
