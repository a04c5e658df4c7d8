// The filters of the list. They stand in the address, and the gateway applies them; the page applies them only to tasks
// that events bring.

import { at, go, link, onMove } from "/web/address.js";
import { ask } from "/web/api.js";
import { attribute, h, put } from "/web/dom.js";
import { onOverview, overview } from "/web/store.js";

const CHIPS = [
  { state: "", title: "All", count: null },
  { state: "active", title: "Active", count: (sum) => sum.running + sum.queued + sum.waiting + sum.needsYou },
  { state: "attention", title: "Needs attention", count: (sum) => sum.needsYou },
  { state: "finished", title: "Finished", count: (sum) => sum.done + sum.failed + sum.timeout + sum.killed + sum.lost },
  { state: "failed", title: "Failed", count: (sum) => sum.failed + sum.timeout + sum.lost },
];
const RANGES = { 1: "Last hour", 24: "Last 24 h", 168: "Last 7 days", 720: "Last 30 days", all: "All time" };
export const PAGE = 200;

/** The query of the list that the address names. */
export function query(cursor) {
  const { state, session, agent, hours, text } = at();
  const given = new URLSearchParams({ include: "segments", limit: PAGE });
  if (state) given.set("state", state);
  if (session) given.set("root", session);
  if (agent) given.set("agent", agent);
  if (text) given.set("text", text);
  if (hours !== "all") given.set("recentMinutes", String(60 * (Number(hours) || 24)));
  if (cursor) given.set("cursor", cursor);
  return `/v1/tasks?${given}`;
}

export const isFiltered = () => Boolean(at().state || at().session || at().agent || at().text);

const FAILED = ["error", "timeout", "lost"];
const IN_STATE = {
  "": () => true,
  active: (task) => task.outcome === null,
  attention: (task) => task.group === "needs attention",
  finished: (task) => task.outcome !== null,
  failed: (task) => FAILED.includes(task.outcome),
};

/** Whether a task of an event belongs into the list. Text is searched by the gateway; here only the label is known. */
export function fits(task) {
  const { state, session, agent, text } = at();
  if (!(IN_STATE[state] ?? IN_STATE[""])(task)) return false;
  if (session && task.rootKey !== session) return false;
  if (agent && task.agentId !== agent) return false;
  return !text || (task.label ?? "").toLowerCase().includes(text.toLowerCase()) || task.taskId === text;
}

/** Load the sessions and agents to choose from. Runs after the page is signed in: each request before would be refused. */
export const fillChoices = () => choices?.();
let choices = null;

export function filterBar(batchButton) {
  const chips = CHIPS.map((chip) => h("a", { class: "chip", "data-local": true }, h("span", { text: chip.title }), h("span", { class: "count" })));
  const session = choice("Session", "session");
  const agent = choice("Agent", "agent");
  const range = h("select", { class: "chip", "aria-label": "Time range" }, Object.entries(RANGES).map(([value, text]) => h("option", { value, text })));
  range.addEventListener("change", () => go({ hours: range.value }));
  const text = h("a", { class: "chip clear", "data-local": true });
  const bar = h("div", { class: "filters", role: "group", "aria-label": "Filters" }, chips, session, agent, range, text, batchButton);
  const mark = () => {
    CHIPS.forEach((chip, place) => {
      attribute(chips[place], "href", link({ state: chip.state }));
      attribute(chips[place], "aria-current", at().state === chip.state ? "true" : null);
    });
    range.value = at().hours in RANGES ? at().hours : "24";
    session.value = at().session;
    agent.value = at().agent;
    text.hidden = !at().text;
    put(text, `Text: ${at().text} ✕`);
    attribute(text, "href", link({ text: "" }));
    attribute(text, "aria-label", `Remove the text filter ${at().text}`);
  };
  onMove(() => { if (bar.isConnected) mark(); });
  onOverview(() => countChips(chips, overview.summary));
  if (overview.summary) countChips(chips, overview.summary);
  mark();
  choices = () => fill(session, agent);
  return bar;
}

/** The counts are those of a day: beside another filter they would be wrong, and are left out. */
function countChips(chips, sum) {
  const isPlain = !at().session && !at().agent && !at().text;
  CHIPS.forEach((chip, place) => {
    const isDaily = at().hours === "24" || ["active", "attention"].includes(chip.state);
    put(chips[place].querySelector(".count"), chip.count && isPlain && isDaily ? String(chip.count(sum)) : "");
  });
}

function choice(title, name) {
  const made = h("select", { class: "chip", "aria-label": title }, h("option", { value: "", text: `${title}: all` }));
  made.addEventListener("change", () => go({ [name]: made.value }));
  return made;
}

async function fill(session, agent) {
  const [sessions, agents] = await Promise.all([
    ask("/v1/sessions?limit=100").catch(() => ({ sessions: [] })),
    ask("/v1/agents").catch(() => ({ agents: [] })),
  ]);
  const keys = new Set(sessions.sessions.filter((one) => one.depth === 0).map((one) => one.sessionKey));
  if (at().session) keys.add(at().session);
  session.replaceChildren(session.firstElementChild, ...[...keys].map((key) => h("option", { value: key, text: `Session: ${key}` })));
  agent.replaceChildren(agent.firstElementChild, ...agents.agents.map((one) => h("option", { value: one.agentId, text: `Agent: ${one.agentId}` })));
  session.value = at().session;
  agent.value = at().agent;
  session.hidden = keys.size < 2;
  agent.hidden = agents.agents.length < 2;
}
