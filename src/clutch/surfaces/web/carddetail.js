// What a card shows of an item: who asks, what exactly, and what each decision does.

import { link } from "/web/address.js";
import { h, visible } from "/web/dom.js";
import { money, tokens } from "/web/format.js";
import { renderMarkdown } from "/web/markdown.js";

const WHOLE_CHARS = 120; // what a line can show
const TITLES = { approval: "Approval needed", question: "Answer needed", plan: "Plan to approve", budget: "Budget exhausted" };

export function titleOf(item) {
  if ("mcpServer" in item.detail) return item.detail.before === null ? "New MCP tool" : "MCP tool changed";
  if ("file" in item.detail) return item.detail.definition === "skill" ? "Skill to approve" : "Agent file to approve";
  return TITLES[item.kind] ?? item.kind;
}

const commandOf = (item) => (typeof item.detail.args?.command === "string" ? item.detail.args.command : null);
const only = (item, ...names) => Object.keys(item.detail.args ?? {}).every((name) => names.includes(name));

/** What is asked, in one line. */
const lineOf = (item) => commandOf(item) ?? item.text;

/** Whether a line shows everything that is decided about. A plan, a long command or a changed tool is read first. */
export function isWhole(item) {
  if (item.kind === "plan" || "mcpServer" in item.detail || "file" in item.detail) return false;
  if (commandOf(item) !== null && !only(item, "command")) return false;
  const shown = visible(lineOf(item));
  return shown.length <= WHOLE_CHARS && !shown.includes("\n");
}

export const summary = (item) => h(item.kind === "approval" ? "code" : "span", { class: "card-line", text: item.kind === "plan" ? firstLine(item.text) : lineOf(item) });

const firstLine = (text) => text.split("\n").find((line) => line.trim())?.replace(/^#+\s*/, "") ?? "";

/** Who asks, from the top of the tree: each part is a link. */
export function askerPath(item) {
  if (!item.path.length) return h("p", { class: "path" }, h("span", { text: item.label ?? "The gateway" }));
  const parts = item.path.map((one) => h("a", {
    href: link(one.taskId ? { task: one.taskId, tab: "activity" } : { view: "tasks", session: one.sessionKey, item: "", task: "" }),
    "data-local": true,
    text: one.label || (one.taskId ?? one.sessionKey),
    title: visible(one.taskId ?? one.sessionKey),
  }));
  return h("p", { class: "path" }, parts.flatMap((part, place) => (place ? [" › ", part] : [part])));
}

export function body(item) {
  const inside = h("div", { class: "card-body" });
  inside.append(...[...whatOf(item)].filter(Boolean));
  return inside;
}

/** A long text scrolls by itself, also with the keyboard. */
const scrolled = (label, ...content) => h("div", { class: "card-text", role: "group", tabindex: 0, "aria-label": label }, content);

function* whatOf(item) {
  if (item.kind === "plan") yield scrolled("Plan", renderMarkdown(item.text, 3));
  else if (item.kind === "question") yield h("p", { class: "card-question", text: item.text });
  else if (item.kind === "budget") yield* budget(item);
  else if ("mcpServer" in item.detail) yield* tool(item);
  else if ("file" in item.detail) yield scrolled("What agents would read", h("pre", { text: item.text }));
  else yield* call(item);
}

function* call(item) {
  const command = commandOf(item);
  if (command === null) {
    yield h("p", {}, "Tool ", h("code", { text: item.detail.tool }));
    yield scrolled("Arguments", h("pre", { text: json(item.detail.args) }));
    return;
  }
  yield scrolled("Command", h("pre", { class: "command", text: command }));
  if (item.directory !== null) yield where(item);
  if (!only(item, "command", "cwd")) yield folded("The whole call", `${item.detail.tool} ${json(item.detail.args)}`);
}

const SANDBOXED = new Map([[true, " · in the sandbox"], [false, " · without a sandbox"], [null, ""]]);

const where = (item) => h("p", { class: item.isSandboxed === false ? "card-where unprotected" : "card-where" },
  "in ", h("code", { text: item.directory }), SANDBOXED.get(item.isSandboxed));

function* tool({ detail }) {
  yield h("p", {}, "Server ", h("code", { text: detail.mcpServer }), ", tool ", h("code", { text: detail.mcpTool }));
  yield scrolled("What is different", h("pre", { text: detail.text }));
  if (detail.before !== null) yield folded("The tool as it was approved", json(detail.before));
  yield folded("The tool as it is offered now", json(detail.after));
}

function* budget(item) {
  yield h("p", { text: item.text });
  if (!item.budget) return;
  const { tokens: limit, usd, spent, reserved } = item.budget;
  const lines = [
    limit === null ? null : ["Tokens", `${tokens(spent.tokens)} of ${tokens(limit)} used${reserved.tokens ? `, ${tokens(reserved.tokens)} reserved` : ""}`],
    usd === null ? null : ["Cost", `${money(spent.usd)} of ${money(usd)} used`],
  ].filter(Boolean);
  yield h("dl", {}, lines.map(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })]));
}

const json = (value) => JSON.stringify(value, null, 2) ?? "";
const folded = (title, text) => h("details", {}, h("summary", { text: title }), h("pre", { tabindex: 0, text }));

export const consequences = (item) => h("ul", { class: "consequences" }, Object.values(item.consequences).map((text) => h("li", { text })));
