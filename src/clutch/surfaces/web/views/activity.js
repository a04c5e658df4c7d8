// The transcript of a task, live: messages, text of the model, tool calls as folding blocks, thinking folded.
//
// The transcript is read in pieces, each once. What the model writes at this moment comes with the stream and stands
// below, until the piece that contains it is read.

import { ask, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { h, put, soon, visible } from "/web/dom.js";
import { duration } from "/web/format.js";
import { renderMarkdown } from "/web/markdown.js";
import { moment, onMoment } from "/web/replay.js";

const READ_MS = 200; // events of one step make one request
const LIVE = ["assistant:text", "assistant:thinking", "tool:start", "tool:end", "usage"];
const OUTPUT_MAX = 20000; // characters of one result; the rest is in the transcript of the API
const NEAR_PX = 80;

let current = null; // the tab that is open, for the events of its task
connection.on(LIVE, (data, name) => { if (current && data.taskId === current.id) current.live(name, data); });

export function activityTab(place, task) {
  const list = h("ol", { class: "activity" });
  const live = h("div", { class: "live", "aria-live": "off" });
  const state = { id: task.taskId, after: 0, started: Date.parse(task.startedAt ?? task.createdAt), calls: [], place, list, live, text: "", isReading: false, again: false };
  place.append(list, live);
  const read = soon(() => readOn(state), READ_MS);
  current = {
    id: task.taskId,
    live(name, data) {
      if (name === "assistant:text") { state.text += data.text; followEnd(place, () => put(live, state.text)); }
      if (name === "usage") read();
      if (name.startsWith("tool:")) read();
    },
  };
  readOn(state);
  onMoment(() => (place.contains(list) ? hideLater(state) : false));
  return () => { if (place.contains(list)) read(); };
}

/** Read what is new. One request at a time: an older answer must not come after a newer one. */
async function readOn(state) {
  if (state.isReading) { state.again = true; return; }
  state.isReading = true;
  try {
    for (let more = true; more && state.place.contains(state.list);) {
      const page = await ask(taskPath(state.id, `/transcript?after=${state.after}`));
      followEnd(state.place, () => add(state, page.messages));
      more = page.next !== null;
    }
  } catch (error) {
    connection.failed(error);
  }
  state.isReading = false;
  if (state.again) { state.again = false; readOn(state); }
}

function add(state, messages) {
  for (const message of messages) {
    state.after = message.seq;
    (ENTRIES[message.kind] ?? other)(state, message);
  }
  if (messages.length) { state.text = ""; put(state.live, ""); }
  hideLater(state);
}

/** A replay shows the transcript up to its moment. */
function hideLater(state) {
  const until = moment() ?? Infinity;
  for (const one of state.list.children) one.hidden = one.sentAt > until;
  for (const { parts, endedAt = Infinity } of state.list.querySelectorAll(".call")) {
    parts.output.hidden = parts.outputTitle.hidden = endedAt === Infinity || endedAt > until;
    parts.state.hidden = endedAt > until && until !== Infinity;
  }
  state.live.hidden = until !== Infinity;
}

/** Keep the end in sight for a reader who is there; leave the place of a reader who has scrolled up. */
function followEnd(place, change) {
  const isNear = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR_PX;
  change();
  if (isNear) place.scrollTop = place.scrollHeight;
}

const ENTRIES = { input, answer, results, summary: other };

function entry(state, message, kind, ...content) {
  const seconds = (Date.parse(message.at) - state.started) / 1000;
  const time = h("time", { datetime: message.at, title: message.at, text: seconds < 1 ? "0s" : duration(seconds) });
  const line = h("li", { class: kind }, time, h("div", { class: "entry" }, content));
  line.sentAt = Date.parse(message.at);
  state.list.append(line);
}

const NAMES = { user: "Message", task: "Task", instruction: "Instruction", system: "Runtime" };

function input(state, message) {
  const { text = "", source = "" } = message.body;
  const isLong = text.length > 600 || text.split("\n").length > 8;
  const title = NAMES[source] ?? (source || "Message");
  const body = h("pre", { class: "plain", text });
  entry(state, message, "input", isLong ? h("details", {}, h("summary", { text: `${title}: ${firstLine(text)}` }), body) : [h("p", { class: "quiet", text: title }), body]);
}

export const firstLine = (text) => { const line = text.trim().split("\n")[0]; return line.length > 90 ? `${line.slice(0, 90)}…` : line; };

function answer(state, message) {
  const { text = "", calls = [], thoughts = [] } = message.body;
  const thinking = thoughts.map((one) => h("details", { class: "thinking" }, h("summary", { text: "Thinking" }), h("pre", { class: "plain", text: one.text ?? "" })));
  state.calls = calls.map((call) => ({ call, at: Date.parse(message.at), block: callBlock(call) }));
  entry(state, message, "answer", ...thinking, text ? renderMarkdown(text) : null, ...state.calls.map(({ block }) => block));
}

/** A tool call: its name and main argument; inside its input, and its output when it has ended. */
export function callBlock(call) {
  const args = call.args ?? {};
  const main = Object.values(args).find((value) => typeof value === "string" && value.trim()) ?? "";
  const state = h("span", { class: "call-state", text: "running" });
  const output = h("pre", { class: "plain", tabindex: 0 });
  const outputTitle = h("p", { class: "quiet", text: "Output" });
  outputTitle.hidden = output.hidden = true;
  const block = h("details", { class: "call", "data-state": "running" },
    h("summary", {}, h("code", { text: call.name }), h("span", { class: "argument", text: firstLine(String(main)) }), state),
    h("p", { class: "quiet", text: "Input" }), h("pre", { class: "plain", tabindex: 0, text: JSON.stringify(args, null, 2) }), outputTitle, output);
  block.parts = { state, output, outputTitle };
  return block;
}

function results(state, message) {
  for (const one of message.body.results ?? []) {
    const known = state.calls[one.index];
    if (!known) continue;
    known.block.endedAt = Date.parse(message.at);
    endCall(known.block, one, known.block.endedAt - known.at);
  }
}

/** Show the result of a call in its block. `took`: milliseconds. */
export function endCall(block, { text, failed }, took) {
  const { state, output, outputTitle } = block.parts;
  block.dataset.state = failed ? "failed" : "done";
  const passed = Math.max(0, took);
  put(state, `${failed ? "failed · " : ""}${passed < 1000 ? `${passed} ms` : duration(passed / 1000)}`);
  put(output, text.length > OUTPUT_MAX ? `${text.slice(0, OUTPUT_MAX)}\n… ${text.length - OUTPUT_MAX} more characters` : text);
  output.hidden = outputTitle.hidden = false;
}

function other(state, message) {
  const text = message.body.text ?? JSON.stringify(message.body, null, 2);
  entry(state, message, "other", h("details", {}, h("summary", { text: `${message.kind}: ${firstLine(visible(text))}` }), h("pre", { class: "plain", text })));
}
