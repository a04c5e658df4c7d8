"""The one table of keys: what may stand in `clutch.json`, and which setting it is.

On the left the key as it is written, on the right the field of `Settings`; of a record, the field of what it becomes.
Type, default and description are those of the field. A setting that is not built has no key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeAlias, get_type_hints

from clutch.blobs import FileStoreSettings
from clutch.channels import Webhook, WebhookChannel
from clutch.config import types
from clutch.config.types import Either, Kind, Many, Maybe, Named, OneOf, Plain, Record, Secret, Table
from clutch.core.agents import ActiveHours, Agent, Delegation, Heartbeat, roster
from clutch.core.authority import ToolPolicy
from clutch.core.model import Hook, Outcome
from clutch.core.policy import ENDS, ON_PARENT_END, Policy, QueueMode
from clutch.core.schedule import ScheduleSpec
from clutch.core.validation import check
from clutch.errors import InvalidInput
from clutch.models.provider import Provider
from clutch.observability import OtelSettings
from clutch.runtimes.acp_process import AcpAgent
from clutch.store.postgres_address import with_parts
from clutch.surfaces.listen import ListenSettings
from clutch.tools.mcp import McpServer
from clutch.tools.registry import ToolSettings

# --------------------------------------------------------------------------------------------------
# All settings of a config, as the process uses them. A default `Settings()` is a Clutch without a file.


@dataclass(frozen=True, slots=True)
class Settings:
    policy: Policy = field(default_factory=Policy)
    tools: ToolSettings = field(default_factory=ToolSettings)
    #: Endpoints of your own, and limits or keys of well-known providers.
    providers: tuple[Provider, ...] = ()
    hooks: tuple[Webhook, ...] = ()  #: Webhooks for the events of subagents.
    #: Channels for replies to people. A route is NAME, or NAME: and a recipient.
    channels: tuple[WebhookChannel, ...] = ()
    #: External agents that can run as subagents. runtime "acp" is the first one.
    acp: tuple[AcpAgent, ...] = ()
    #: Address of a PostgreSQL database. None = SQLite in the state directory. `database: "…"` is short for it.
    database: str | None = field(default=None, repr=False)
    #: Address of the server itself, where `database.url` is a pooler in transaction mode. The lock that proves a
    #: gateway alive and the notifications between gateways use it.
    database_direct: str | None = field(default=None, repr=False)
    #: Schema of the tables; it is created if it is missing. Gateways in different schemas of one database do not meet.
    database_schema: str | None = None
    #: Schedules of this file, by name: they change and go with it. On a database that gateways share, null (the
    #: default) leaves those of other files alone; {} removes them.
    schedules: tuple[ScheduleSpec, ...] | None = None
    files: FileStoreSettings = field(default_factory=FileStoreSettings)
    listening: ListenSettings = field(default_factory=ListenSettings)
    otel: OtelSettings = field(default_factory=OtelSettings)

    def __post_init__(self) -> None:
        check(self)

    @property
    def database_address(self) -> str | None:
        """The address with everything that the config says about it. Raises InvalidInput."""
        if self.database is not None:
            return with_parts(self.database, direct=self.database_direct, schema=self.database_schema)
        if self.database_direct is not None or self.database_schema is not None:
            raise InvalidInput(
                "database.url", "missing: `database.direct` and `database.schema` belong to it"
            )
        return None


def get(settings: Any, path: str) -> Any:
    for part in path.split("."):
        settings = settings[part] if isinstance(settings, Mapping) else getattr(settings, part)
    return settings


def put(settings: Any, path: str, value: Any) -> Any:
    """Return the settings with one value changed. Raises InvalidInput where a setting refuses it."""
    name, _, rest = path.partition(".")
    changed = put(get(settings, name), rest, value) if rest else value
    return (
        {**settings, name: changed} if isinstance(settings, Mapping) else replace(settings, **{name: changed})
    )


@dataclass(frozen=True, slots=True)
class To:
    """A field by its path, with its kind where it does not follow from the type of the field."""

    path: str
    kind: Kind | None = None


_SECRETS = Table(Secret())
_MODES = OneOf({mode.value: mode for mode in QueueMode}, {"direct": QueueMode.FOLLOWUP})

_SUBAGENTS: Mapping[str, To] = {
    "maxConcurrent": To("policy.work.lanes.subagent"),
    "maxChildrenPerAgent": To("policy.limits.children_max"),
    "onFull": To("policy.defaults.subagents.on_full"),
    "maxSpawnDepth": To("policy.limits.depth_max"),
    "maxDescendants": To("policy.limits.descendants_max"),
    "maxRetained": To("policy.limits.retained_max"),
    "retainedOverflow": To(
        "policy.limits.evicts_delivered", OneOf({"evict-delivered": True, "reject": False})
    ),
    "reservationSeconds": To("policy.limits.reservation_s"),
    "undeliveredBacklog": To("policy.limits.undelivered_max"),
    "onParentEnd": To(
        "policy.limits.on_parent_end",
        Table(
            OneOf({word: word for word in sorted(ON_PARENT_END)}),
            OneOf({one.value: one for one in Outcome if one in ENDS}),
        ),
    ),
    "allowAgents": To("policy.limits.allow_agents"),
    "requireAgentId": To("policy.limits.require_agent_id"),
    "model": To("policy.defaults.subagents.model"),
    "thinking": To("policy.defaults.subagents.thinking"),
    "runTimeoutSeconds": To("policy.defaults.subagents.run_timeout_s"),
    "workspace": To("policy.defaults.subagents.workspace"),
    "onInvalidModel": To("policy.defaults.subagents.on_invalid_model"),
    "errorGraceSeconds": To("policy.life.error_grace_s"),
    "wrapUpAt": To("policy.life.wrap_up_at"),
    "crashLimit": To("policy.life.crash_limit"),
    "resultMaxBytes": To("policy.life.result_bytes_max"),
    "archiveAfterMinutes": To("policy.keeping.archive_after_s"),
    "maxSteps": To("policy.life.steps_max"),
    "sameCallWarn": To("policy.life.same_call_warn"),
    "sameCallMax": To("policy.life.same_call_max"),
    "stalledAfter": To("policy.life.stalled_s"),
    "taskMaxBytes": To("policy.limits.task_bytes_max"),
    "labelMaxChars": To("policy.limits.label_max"),
    "labelFromTaskChars": To("policy.limits.label_from_task"),
}

ROOT: Mapping[str, To] = {
    "agents.defaults.model": To("policy.defaults.model"),
    "agents.defaults.thinking": To("policy.defaults.thinking"),
    "agents.defaults.maxConcurrent": To("policy.work.lanes.main"),
    "agents.defaults.workspace": To("policy.defaults.workspace", Maybe(Plain.FOLDER)),
    "agents.defaults.heartbeat": To("policy.defaults.heartbeat"),
    **{f"agents.defaults.subagents.{key}": to for key, to in _SUBAGENTS.items()},
    "agents.files": To("policy.file_trust"),
    "agents.list": To("policy.agents", Many(Record(Agent), roster)),
    "tools.subagents.tools.allow": To("policy.tools.allow"),
    "tools.subagents.tools.alsoAllow": To("policy.tools.also_allow"),
    "tools.subagents.tools.deny": To("policy.tools.deny"),
    "tools.agentToAgent.enabled": To("policy.peers.enabled"),
    "tools.agentToAgent.allow": To("policy.peers.allow"),
    "tools.sessions.visibility": To("policy.visibility"),
    "tools.sessions_spawn.attachments.enabled": To("policy.limits.attachments.enabled"),
    "tools.sessions_spawn.attachments.maxFiles": To("policy.limits.attachments.files_max"),
    "tools.sessions_spawn.attachments.maxFileBytes": To("policy.limits.attachments.file_bytes_max"),
    "tools.sessions_spawn.attachments.maxTotalBytes": To("policy.limits.attachments.total_bytes_max"),
    "tools.sessions_spawn.attachments.retainOnKeep": To("policy.limits.attachments.retain_on_keep"),
    "tools.aliases": To("tools.aliases"),
    "tools.taint": To("policy.taint"),
    "tools.shell.needsApproval": To("tools.shell_needs_approval"),
    "tools.web_fetch.allowPrivate": To("tools.allow_private"),
    "sandbox.mode": To("tools.sandbox"),
    "sandbox.network": To("tools.network"),
    "session.agentToAgent.maxPingPongTurns": To("policy.peers.turns_max"),
    "session.threadBindings.enabled": To("policy.threads.enabled"),
    "session.threadBindings.idleHours": To("policy.threads.idle_s"),
    "session.threadBindings.maxAgeHours": To("policy.threads.age_max_s"),
    "announce.payload": To("policy.announcing.payload"),
    "announce.inlineMaxChars": To("policy.announcing.inline_chars_max"),
    "announce.summaryMaxChars": To("policy.announcing.summary_chars_max"),
    "announce.idleWake": To("policy.announcing.idle_wake"),
    "announce.direct": To("policy.announcing.direct"),
    "announce.timeoutMs": To("policy.announcing.send_timeout_s"),
    "announce.queue.mode": To("policy.announcing.mode", _MODES),
    "announce.queue.debounceMs": To("policy.announcing.debounce_s"),
    "announce.queue.debounceRestarts": To("policy.announcing.debounce_restarts"),
    "announce.queue.cap": To("policy.announcing.cap"),
    "announce.queue.drop": To("policy.announcing.drop"),
    "announce.retry.fastTries": To("policy.announcing.fast_tries"),
    "announce.retry.firstMs": To("policy.announcing.first_s"),
    "announce.retry.fastMaxMs": To("policy.announcing.fast_max_s"),
    "announce.retry.slow": To("policy.announcing.slow"),
    "announce.retry.slowFirstMs": To("policy.announcing.slow_first_s"),
    "announce.retry.slowMaxMs": To("policy.announcing.slow_max_s"),
    "announce.retry.jitter": To("policy.announcing.jitter"),
    "announce.retry.untilMinutes": To("policy.announcing.until_s"),
    "announce.retry.untilMinutesNoCompletion": To(
        "policy.announcing.until_no_completion_s", types.Duration("m")
    ),
    "announce.deadLetterDays": To("policy.announcing.dead_letter_days"),
    "announce.descendantsExpiryMinutes": To("policy.life.settle_expiry_s"),
    "announce.descendantsExpiryFrom": To("policy.life.settle_expiry_from"),
    "plan.onReject": To("policy.life.on_reject"),
    "plan.maxRevisions": To("policy.life.plan_rounds_max"),
    "plan.approvalTimeoutMinutes": To("policy.life.plan_expiry_s"),
    "kill.announce": To("policy.control.announces_kill"),
    "kill.lateResult": To("policy.control.late_result"),
    "control.steerMaxChars": To("policy.control.steer_chars_max"),
    "control.steerMinIntervalSeconds": To("policy.control.steer_interval_s"),
    "control.sendWaitSeconds": To("policy.control.send_wait_s"),
    "archive.afterMinutes": To("policy.keeping.archive_after_s"),
    "archive.deleteTranscriptAfter": To(
        "policy.keeping.transcript_after_s",
        Either(OneOf({"never": None, "at-archive": 0.0}), types.Duration()),
    ),
    "archive.deleteTimelineAfter": To(
        "policy.keeping.timeline_after_s", Either(OneOf({"never": None}), types.Duration())
    ),
    "archive.deleteSentAfter": To(
        "policy.keeping.sent_after_s", Either(OneOf({"never": None}), types.Duration())
    ),
    "archive.sumUsageAfter": To(
        "policy.keeping.usage_after_s", Either(OneOf({"never": None}), types.Duration())
    ),
    "archive.sweepSeconds": To("policy.keeping.sweep_s"),
    "archive.cleanupFirstSeconds": To("policy.keeping.cleanup_first_s"),
    "archive.cleanupMaxSeconds": To("policy.keeping.cleanup_max_s"),
    "recovery.onOrphan": To("policy.keeping.on_orphan"),
    "list.recentMinutes": To("policy.list_recent_s"),
    "prompt.activeChildren": To("policy.context.active_children_max"),
    "prompt.recentChildren": To("policy.context.recent_children_max"),
    "prompt.recentChildrenMinutes": To("policy.context.recent_children_s"),
    "prompt.systemEvents": To("policy.context.system_events_max"),
    "prompt.documentMaxBytes": To("policy.context.document_bytes_max"),
    "context.windowTokens": To("policy.context.window_tokens"),
    "context.compactAt": To("policy.context.compact_at"),
    "context.keepTokens": To("policy.context.keep_tokens"),
    "context.summaryMaxBytes": To("policy.context.summary_bytes_max"),
    "context.resultMaxChars": To("policy.context.result_chars_max"),
    "context.forkMaxBytes": To("policy.context.fork_bytes_max"),
    "history.maxBytes": To("policy.history.bytes_max"),
    "history.maxTextChars": To("policy.history.text_chars_max"),
    "history.entryMaxBytes": To("policy.history.entry_bytes_max"),
    "history.limit": To("policy.history.limit"),
    "history.limitMax": To("policy.history.limit_max"),
    "history.logLines": To("policy.history.log"),
    "history.maxMessages": To("policy.history.messages_max"),
    "budget.rootTokens": To("policy.budgets.root_tokens"),
    "budget.rootUsd": To("policy.budgets.root_usd"),
    "budget.dayTokens": To("policy.budgets.day_tokens"),
    "budget.dayUsd": To("policy.budgets.day_usd"),
    "budget.outputTokens": To("policy.budgets.output_tokens"),
    "budget.onBudget": To("policy.budgets.on_budget"),
    "models.maxWait": To("policy.life.quota_wait_max_s"),
    "models.idleTimeout": To("policy.life.provider_idle_s"),
    "models.retrySeconds": To("policy.life.provider_retries_s"),
    "models.providers": To("providers", Named(Record(Provider))),
    "acp.allowFork": To("policy.acp_forks"),
    "acp.agents": To("acp", Named(Record(AcpAgent))),
    "mcp.servers": To("tools.mcp_servers", Named(Record(McpServer))),
    "hooks": To("hooks", Many(Record(Webhook))),
    "channels": To("channels", Named(Record(WebhookChannel))),
    "notify": To("policy.notify"),
    "gateway.host": To("listening.host"),
    "gateway.port": To("listening.port"),
    "gateway.allowRemote": To("listening.allow_remote"),
    "gateway.allowedHosts": To("listening.allowed_hosts"),
    "gateway.idleExit": To("policy.serving.idle_exit_s"),
    "gateway.drainAhead": To("policy.serving.drain_ahead_s"),
    "gateway.logMaxBytes": To("policy.serving.log_bytes_max"),
    "gateway.requestsPerSecond": To("policy.serving.requests_per_s"),
    "gateway.requestsBurst": To("policy.serving.requests_burst"),
    "gateway.browserCode": To("policy.serving.code_s"),
    "gateway.browserSession": To("policy.serving.browser_s"),
    "gateway.phoneCode": To("policy.serving.phone_code_s"),
    "gateway.phoneSession": To("policy.serving.phone_s"),
    "gateway.pushHosts": To("policy.serving.push_hosts"),
    "gateway.pushContact": To("policy.serving.push_contact"),
    "worker.lease": To("policy.work.lease_s"),
    "worker.held": To("policy.work.held_s"),
    "worker.tick": To("policy.work.tick_s"),
    "worker.stop": To("policy.work.stop_s"),
    "worker.toolGrace": To("policy.work.tool_grace_s"),
    "worker.maxSessions": To("policy.work.sessions_max"),
    "worker.claimFirst": To("policy.work.claim_first"),
    "worker.shares": To("policy.work.shares"),
    "database.url": To("database", Maybe(Secret())),
    "database.direct": To("database_direct", Maybe(Secret())),
    "database.schema": To("database_schema"),
    "otel.endpoint": To("otel.endpoint"),
    "otel.headers": To("otel.headers", _SECRETS),
    "otel.content": To("otel.content"),
    "otel.every": To("otel.every_s"),
    "files.store": To("files.store"),
    "files.databaseMaxBytes": To("files.database_bytes_max"),
    "files.sessionMaxBytes": To("files.session_bytes_max"),
    "headless": To("policy.is_headless"),
    "schedules": To("schedules", Maybe(Named(Record(ScheduleSpec)))),
}

#: Records: what an object of a list, or under a name, becomes.
FORMS: Mapping[type, Mapping[str, To]] = {
    Settings: ROOT,
    Agent: {
        "id": To("id"),
        "model": To("model"),
        "thinking": To("thinking"),
        "description": To("description"),
        "identity": To("identity", Plain.IDENTITY),
        "instructions": To("instructions"),
        "workspace": To("workspace", Maybe(Plain.FOLDER)),
        "heartbeat": To("heartbeat"),
        "subagents": To("subagents"),
        "sandbox": To("sandbox"),
        "network": To("network"),
        "tools": To("tools"),
        "models": To("models"),
        "maxTurns": To("max_turns"),
        "skills": To("skills"),
    },
    ScheduleSpec: {
        "at": To("at"),
        "every": To("every_s"),
        "cron": To("cron"),
        "timezone": To("timezone"),
        "jitter": To("jitter_s"),
        "missed": To("missed"),
        "catchUp": To("catch_up"),
        "overlap": To("overlap"),
        "maxRuns": To("max_runs"),
        "task": To("task"),
        "session": To("session"),
        "label": To("label"),
        "agentId": To("agent_id"),
        "model": To("model"),
        "runTimeoutSeconds": To("run_timeout_s"),
        "notifyParent": To("notify_parent"),
        "runTokens": To("run_tokens"),
        "runUsd": To("run_usd"),
        "totalTokens": To("total_tokens"),
        "totalUsd": To("total_usd"),
    },
    Delegation: {
        "allowAgents": To("allow_agents"),
        "model": To("model"),
        "thinking": To("thinking"),
        "requireAgentId": To("require_agent_id"),
        "workspace": To("workspace"),
    },
    ToolPolicy: {"allow": To("allow"), "alsoAllow": To("also_allow"), "deny": To("deny")},
    Heartbeat: {
        "every": To("every_s"),
        "prompt": To("prompt"),
        "target": To("target"),
        "activeHours": To("active_hours"),
        "ackMaxChars": To("ack_chars_max"),
        "coalesceMs": To("coalesce_s"),
        "busyRetryMs": To("busy_retry_s"),
        "dedupeHours": To("dedupe_s"),
        "maxEvents": To("events_max"),
    },
    ActiveHours: {"start": To("start"), "end": To("end"), "timezone": To("timezone")},
    Provider: {
        "baseUrl": To("base_url"),
        "apiKey": To("api_key", Secret(later="api_key_env")),
        "headers": To("headers", _SECRETS),
        "adapter": To("adapter"),
        "speaks": To("speaks"),
        "concurrencyMax": To("concurrency_max"),
        "tokensPerMinute": To("tokens_per_minute"),
        "idleTimeout": To("idle_timeout_s"),
        "allowModelMismatch": To("allow_model_mismatch"),
        "contextWindow": To("context_window"),
        "efforts": To("efforts"),
    },
    AcpAgent: {
        "command": To("command"),
        "args": To("args"),
        "install": To("install"),
        "env": To("env", _SECRETS),
        "inherit": To("inherit"),
        "sandbox": To("sandbox"),
        "visible": To("visible", Many(Plain.FOLDER)),
        "writable": To("writable", Many(Plain.FOLDER)),
        "startTimeout": To("start_timeout_s"),
        "memory": To("memory_bytes"),
        "silenceTimeout": To("silence_timeout_s"),
    },
    McpServer: {
        "command": To("command"),
        "args": To("args"),
        "cwd": To("cwd", Maybe(Plain.FOLDER)),
        "env": To("env", _SECRETS),
        "inherit": To("inherit"),
        "sandbox": To("sandbox"),
        "network": To("network"),
        "visible": To("visible", Many(Plain.FOLDER)),
        "url": To("url"),
        "headers": To("headers", _SECRETS),
        "connectTimeout": To("connect_timeout_s"),
        "callTimeout": To("call_timeout_s"),
        "readOnlyConsent": To("read_only_consent"),
        "approve": To("approve", Either(OneOf({"all": "all"}), Many(Plain.TEXT, frozenset))),
        "allow": To("allow"),
    },
    Webhook: {
        "url": To("url"),
        "events": To("events", Many(OneOf({hook.value: hook.value for hook in Hook}))),
        "headers": To("headers", Maybe(_SECRETS)),
    },
    WebhookChannel: {
        "url": To("url", Secret()),
        "headers": To("headers", _SECRETS),
        "threads": To("threads"),
        "operators": To("operators"),
        "approvers": To("approvers"),
    },
}

#: Two names of one setting: a file may use only one of them.
ALIASES: Mapping[str, str] = {"agents.defaults.subagents.archiveAfterMinutes": "archive.afterMinutes"}

#: An object that may be written as one of its values: `sandbox: "off"` is `sandbox: {mode: "off"}`.
SHORT_FORMS: Mapping[str, str] = {"sandbox": "mode", "database": "url"}

#: Keys that a running process cannot apply: they are bound to sockets, threads and processes, or registered elsewhere.
NEEDS_RESTART = (
    "agents.defaults.maxConcurrent",
    "agents.defaults.subagents.maxConcurrent",
    "agents.defaults.subagents.taskMaxBytes",
    "agents.defaults.subagents.labelMaxChars",
    "tools.sessions_spawn.",
    "tools.aliases",
    "tools.shell.",
    "tools.web_fetch.",
    "sandbox.",
    "prompt.documentMaxBytes",
    "models.idleTimeout",
    "models.providers",
    "acp.",
    "mcp.",
    "hooks",
    "channels",
    "gateway.",
    "worker.lease",
    "worker.held",
    "worker.tick",
    "worker.stop",
    "worker.toolGrace",
    "worker.maxSessions",
    "worker.claimFirst",
    "database",
    "otel.",
    "files.",
)


def is_live(key: str) -> bool:
    """Whether a running process applies the key when it reads the file again."""
    return not key.startswith(NEEDS_RESTART)


# --------------------------------------------------------------------------------------------------
# What is known of every key of the table: its kind, the field it sets, and the default of that field.


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """`key`: in full, `[]` for any item of a list and `NAME` for any name. `owner`: the class that has the field."""

    key: str
    kind: Kind
    owner: type
    field: str
    default: Any  #: of the field itself; REQUIRED: there is none

    @property
    def is_live(self) -> bool:
        return is_live(self.key)


REQUIRED = object()
Tree: TypeAlias = "Mapping[str, To | Tree]"


@lru_cache(maxsize=16)
def tree_of(made: type) -> Tree:
    """Return the dotted keys of a record as nested objects."""
    tree: dict[str, Any] = {}
    for key, to in FORMS[made].items():
        *folders, last = key.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = to
    return tree


@lru_cache(maxsize=512)
def kind_at(made: type, key: str) -> Kind:
    """Return the kind of a key of a record."""
    to = FORMS[made][key]
    if to.kind is not None:
        return to.kind
    _, field, hint = _field_of(made, to.path)
    return types.kind_of(hint, key, field)


def _field_of(made: type, path: str) -> tuple[type, str, Any]:
    """Return the class that declares a field, the field's name and its type. A key of a mapping is the mapping's."""
    first, *rest = path.split(".")
    owner, name, hint = made, first, get_type_hints(made)[first]
    for part in rest:
        if hasattr(hint, "__dataclass_fields__"):
            owner, name, hint = hint, part, get_type_hints(hint)[part]
        else:
            hint = hint.__args__[1]
    return owner, name, hint


@lru_cache(maxsize=1)
def catalogue() -> tuple[ConfigKey, ...]:
    """Return every key, those of a record after the key that holds the record."""
    return tuple(_entries(Settings, ""))


def _entries(made: type, prefix: str) -> Iterator[ConfigKey]:
    defaults = Settings() if made is Settings else None
    for key, to in FORMS[made].items():
        owner, field, _ = _field_of(made, to.path)
        kind = kind_at(made, key)
        default = get(defaults, to.path) if defaults is not None else default_of(owner, field)
        yield ConfigKey(prefix + key, kind, owner, field, default)
        record, infix = record_in(kind)
        if record is not None:
            yield from _entries(record.made, f"{prefix}{key}{infix}.")


def record_in(kind: Kind) -> tuple[Record | None, str]:
    """Return the record that a value is or holds, and what stands between its key and the record's keys."""
    match kind:
        case Maybe():
            return record_in(kind.kind)
        case Record():
            return kind, ""
        case Named(record):
            return record, ".NAME"
        case Many(Record() as record):
            return record, "[]"
        case _:
            return None, ""


def default_of(owner: type, field: str) -> Any:
    found = next(one for one in fields(owner) if one.name == field)
    if found.default is not MISSING:
        return found.default
    return REQUIRED if found.default_factory is MISSING else found.default_factory()
