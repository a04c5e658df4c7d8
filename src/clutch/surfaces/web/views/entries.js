// The entries of a conversation: messages of the user, answers of the agent with their tool calls and subagents,
// results of subagents where they were delivered, and lines of the page itself.

import { link } from "/web/address.js";
import { titleOf } from "/web/carddetail.js";
import { itemKey } from "/web/cards.js";
import { h } from "/web/dom.js";
import { clock, moment } from "/web/format.js";
import { renderMarkdown } from "/web/markdown.js";
import { callBlock, endCall, firstLine } from "/web/views/activity.js";
import { endSpawn, isSpawn, spawnCard } from "/web/views/spawncard.js";

const LONG_CHARS = 1200;
const LONG_LINES = 16;
const PERSON = ["user", "request"];
const FROM_CHILDREN = ["announce", "plan", "news"];
const OUTCOMES = { ok: "done", error: "failed", timeout: "timed out", killed: "killed", lost: "lost" };
const TITLES = { task: "Task", instruction: "Instruction", decision: "Decision", note: "Note of the runtime", heartbeat: "Heartbeat", peer: "Message of another agent", announce: "Results of subagents", plan: "Plan of a subagent", news: "News of a subagent" };

export const isPerson = (message) => message.kind === "input" && PERSON.includes(message.body.source);

const entry = (message, kind, ...content) => h("article", { class: `entry-${kind}`, "data-seq": message.seq, "data-run": message.runId ?? "" }, content);

const stamp = (at) => h("time", { class: "quiet", datetime: at, title: clock(at), text: moment(at) });

/** Make the element of a message; null for one that belongs to an element before it. `delivered`: results that the
 * message brought. */
export function messageEntry(message, delivered) {
  if (message.kind === "answer") return answerEntry(message);
  if (message.kind === "results") return null;
  if (isPerson(message)) return personEntry(message.body.text, message.at, message);
  if (message.kind === "input" && FROM_CHILDREN.includes(message.body.source)) return deliveredEntry(message, delivered);
  return otherEntry(message);
}

/** What the user wrote. `message`: the entry of the transcript, once the agent has read it. */
export function personEntry(text, at, message = { seq: "", runId: "" }) {
  const state = h("span", { class: "message-state" });
  const made = entry(message, "person", h("h3", { class: "hidden-text", text: "You" }),
    h("div", { class: "bubble" }, longText(text)), h("p", { class: "meta" }, state, stamp(at)));
  made.state = state;
  return made;
}

/** A long text, as with the files it mentions, begins folded. */
function longText(text) {
  const lines = text.split("\n");
  if (text.length <= LONG_CHARS && lines.length <= LONG_LINES) return h("p", { class: "typed", text });
  const head = lines.slice(0, LONG_LINES).join("\n").slice(0, LONG_CHARS);
  return h("details", {}, h("summary", { class: "typed", text: `${head}…` }), h("p", { class: "typed", text }));
}

function answerEntry(message) {
  const { text = "", calls = [], thoughts = [] } = message.body;
  const thinking = thoughts.filter((one) => one.text).map((one) =>
    h("details", { class: "thinking" }, h("summary", { text: "Thinking" }), h("pre", { class: "plain", tabindex: 0, text: one.text })));
  const blocks = calls.map((call) => (isSpawn(call) ? spawnCard(call) : callBlock(call)));
  const made = entry(message, "agent", h("h3", { class: "hidden-text", text: "Agent" }), thinking, text.trim() ? renderMarkdown(text, 4) : null, blocks);
  made.calls = calls.map((call, place) => ({ call, block: blocks[place], at: Date.parse(message.at) }));
  return made;
}

/** Bring results into the blocks of their calls. */
export function endCalls(made, message) {
  for (const one of message.body.results ?? []) {
    const known = made?.calls?.[one.index];
    if (!known) continue;
    if (isSpawn(known.call)) endSpawn(known.block, one);
    else endCall(known.block, one, Date.parse(message.at) - known.at);
  }
  if (made) made.isOpen = false;
}

function deliveredEntry(message, delivered) {
  const { text = "", source } = message.body;
  const lines = delivered.map((one) => h("li", { "data-outcome": one.outcome ?? "" },
    h("span", { text: source === "announce" ? "Result of " : `${TITLES[source]}: ` }),
    h("a", { href: link({ task: one.taskId, tab: "result" }), "data-local": true, text: one.label || one.taskId }),
    h("span", { class: "quiet", text: source === "announce" && one.outcome ? ` delivered · ${OUTCOMES[one.outcome] ?? one.outcome}` : "" })));
  return entry(message, "delivered", h("ul", {}, lines),
    h("details", {}, h("summary", { text: delivered.length ? "What the agent read" : `${TITLES[source]}: ${firstLine(text)}` }), h("pre", { class: "plain", tabindex: 0, text })));
}

function otherEntry(message) {
  const text = message.body.text ?? JSON.stringify(message.body, null, 2);
  const title = message.kind === "summary" ? "Summary of the conversation so far" : TITLES[message.body.source] ?? "Message";
  return entry(message, "other", h("details", {}, h("summary", { text: `${title}: ${firstLine(text)}` }), h("pre", { class: "plain", tabindex: 0, text })));
}

/** A line of the page, not of the conversation: the answer to a command, how a turn ended. */
export const systemEntry = (text, kind = "") => h("article", { class: `entry-system ${kind}` }, h("pre", { text }));

/** Text that the model had written when its turn ended early: it is in no transcript. */
export const partialEntry = (text) => h("article", { class: "entry-agent partial" },
  h("h3", { class: "hidden-text", text: "Agent" }), renderMarkdown(text, 4), h("p", { class: "quiet", text: "Not finished. The agent does not remember this part." }));

/** A decision that waits, in short. It is made in the Inbox, where everything about it is shown. */
export function askCard(item) {
  const inbox = link({ view: "inbox", session: "", task: "", tab: "activity" });
  return h("div", { class: "ask", "data-key": itemKey(item), role: "group", "aria-label": titleOf(item) },
    h("p", {}, h("strong", { text: titleOf(item) }), item.label ? h("span", { text: ` · ${item.label}` }) : null),
    h("p", { class: "ask-text", text: firstLine(item.detail.args?.command ?? item.text) }),
    h("a", { class: "ask-link", href: inbox, "data-local": true, text: "Decide in the Inbox" }));
}
