"""The file that `clutch init` writes: what was found on this machine at work, the rest as comments to try.

A key that stands in the environment stays there; the file only relies on it. Ollama is looked for on loopback alone.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass

from clutch.models.settings import KEY_VARIABLES

OLLAMA = ("127.0.0.1", 11434)
PATIENCE_S = 0.5  # a server on this machine answers in a hundredth of it
TAGS_BYTES_MAX = 256 * 1024

#: A model to begin with; the first whose key is there is taken.
MODELS: Mapping[str, str] = {
    "anthropic": "anthropic:claude-sonnet-4-5",
    "openai": "openai:gpt-5-mini",
    "google": "google:gemini-2.5-flash",
    "openrouter": "openrouter:anthropic/claude-sonnet-4.5",
    "mistral": "mistral:mistral-small-latest",
    "groq": "groq:openai/gpt-oss-120b",
}


@dataclass(frozen=True, slots=True)
class Choice:
    model: str
    because: str


NOTHING = Choice("offline", "no provider key in the environment and no Ollama here: a script, not an LLM")


def choices(environment: Mapping[str, str], ollama: tuple[str, int] = OLLAMA) -> tuple[Choice, ...]:
    """What could be asked from here, the likeliest first; never empty."""
    keys = [
        Choice(model, f"{KEY_VARIABLES[provider]} is set")
        for provider, model in MODELS.items()
        if environment.get(KEY_VARIABLES[provider], "").strip()
    ]
    local = [Choice(f"ollama:{name}", "Ollama runs on this machine") for name in _local_models(*ollama)]
    return (*keys, *local, NOTHING)


def _local_models(host: str, port: int) -> list[str]:
    """Empty: nobody answers, or not as Ollama does."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/api/tags")
        said = json.loads(connection.getresponse().read(TAGS_BYTES_MAX))
        names = [str(one["name"]) for one in said["models"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
    finally:
        connection.close()
    return [name for name in names if name.isprintable() and 0 < len(name) <= 100]


def starter(chosen: Choice, others: tuple[Choice, ...]) -> str:
    """A config that loads as it is, and also with every commented key switched on."""
    rest = "".join(f"      // {json.dumps(one.model)}: {one.because}\n" for one in others if one != chosen)
    return (
        _TEXT.replace("@MODEL@", json.dumps(chosen.model))
        .replace("@BECAUSE@", chosen.because)
        .replace("@OTHERS@\n", rest)
    )


_TEXT = """\
// The config of Clutch, in JSON5: comments, keys without quotes and a last comma are fine.
// A number with a unit is a text: "15m", "1h30m", "500ms", "8MB", "0.50" (dollars).
//   clutch config check           is it right?
//   clutch config explain KEY     what holds, where it is said, and why
//   clutch config schema          for your editor
{
  agents: {
    defaults: {
      model: @MODEL@, // @BECAUSE@
@OTHERS@
      // workspace: "~/notes", // where the file tools work; without it, where the gateway was started
      subagents: {
        // model: "openai:gpt-5-mini", // a cheaper one for children
        // maxChildrenPerAgent: 5,
        // maxSpawnDepth: 1, // 2: children may have children
        // runTimeoutSeconds: "15m",
      },
    },
    // list: [{ id: "research", identity: "You are Ada, a careful researcher." }],
  },

  // What may be spent; without it there is no limit.
  budget: {
    // dayUsd: "5.00",
    // rootTokens: 2000000,
  },

  models: {
    providers: {
      // A key comes from its usual variable. Another place, or an endpoint of your own:
      // lab: { baseUrl: "http://127.0.0.1:8000/v1", adapter: "direct", apiKey: { env: "LAB_API_KEY" } },
    },
  },

  // Commands and file tools run in a sandbox and see the workspace only.
  sandbox: {
    // network: true,
  },

  mcp: {
    servers: {
      // Web search, for example:
      // search: { url: "https://mcp.example.com/search", headers: { Authorization: { env: "SEARCH_TOKEN" } } },
    },
  },
}
"""
