// The result of a task: its text as Markdown, its value as a tree, its checks, the evidence of the ledger; and its files.

import { ask, Refused, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { button, h, put } from "/web/dom.js";
import { clock, size } from "/web/format.js";
import { renderMarkdown } from "/web/markdown.js";

const VALUES_MAX = 2000; // lines of a value

/** Fill a tab from the result of a task, again for each of its generations. */
function resultOf(place, task, show) {
  let drawn = "";
  const update = async (now) => {
    if (now.outcome === null) {
      if (drawn !== "pending") place.replaceChildren(h("p", { class: "quiet", text: "The result appears here when the task has ended." }));
      drawn = "pending";
      return;
    }
    const version = `${now.generation} ${now.outcome} ${now.endedAt}`;
    if (drawn === version) return;
    drawn = version;
    try {
      const result = await ask(taskPath(now.taskId, "/result"));
      if (drawn === version) place.replaceChildren(...show(result, now));
    } catch (error) {
      drawn = "";
      if (error instanceof Refused) place.replaceChildren(h("p", { role: "alert", text: error.message }));
      else connection.failed(error);
    }
  };
  update(task);
  return update;
}

export const resultTab = (place, task) => resultOf(place, task, (result, now) => [
  now.error ? h("p", { class: "error", text: now.error }) : null,
  result.text ? renderMarkdown(result.text) : h("p", { class: "quiet", text: "There is no final text." }),
  result.truncated ? h("p", { class: "quiet", text: "The text was cut at its limit." }) : null,
  result.value === null ? null : h("section", {}, h("h3", { text: "Value" }), h("ul", { class: "value" }, node("", result.value, { left: VALUES_MAX }))),
  result.late ? h("section", {}, h("h3", { text: `Arrived late, ${clock(result.late.at)}` }), renderMarkdown(result.late.text)) : null,
  checks(now.checks),
  evidence(now.evidence),
].filter(Boolean));

/** A JSON value as a tree; long ones are cut. */
function node(name, value, budget) {
  budget.left -= 1;
  const label = name === "" ? null : h("span", { class: "key", text: `${name}: ` });
  if (budget.left < 0) return h("li", {}, "…");
  if (value === null || typeof value !== "object") return h("li", {}, label, h("span", { class: `leaf ${typeof value}`, text: typeof value === "string" ? `"${value}"` : String(value) }));
  const entries = Object.entries(value);
  const kind = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return h("li", {}, h("details", { open: true }, h("summary", {}, label, h("span", { class: "quiet", text: kind })),
    h("ul", {}, entries.map(([key, one]) => node(key, one, budget)))));
}

/** What each check said; without checks, nothing says so but the status. */
function checks(found) {
  if (!found) return null;
  const lines = found.results.map((one) => [one.name, one.detail ? `${one.state}: ${one.detail}` : one.state]);
  return h("section", { class: "evidence checks" }, h("h3", { text: `Checks: ${found.text}` }), facts(lines));
}

function evidence(found) {
  if (!found) return null;
  const lines = [
    ["Tool calls", String(found.toolCalls)],
    ["Files touched", found.filesTouched.join(", ") || "none"],
    ["Subagents joined", String(found.childrenJoined)],
    ...(found.childrenMissing.length ? [["Subagents missing", found.childrenMissing.join(", ")]] : []),
    ["Stop reason", found.stopReason ?? "n/a"],
  ];
  return h("section", { class: "evidence" }, h("h3", { text: "Evidence" }), h("p", { class: "quiet", text: "Recorded by the gateway, not by the model." }), facts(lines));
}

export const facts = (lines) => h("dl", {}, lines.map(([name, value]) => [h("dt", { text: name }), value instanceof Node ? h("dd", {}, value) : h("dd", { text: value })]));

export const filesTab = (place, task) => resultOf(place, task, (result) => {
  if (!result.files.length) return [h("p", { class: "quiet", text: "This task hands over no files." })];
  const said = h("p", { class: "said", role: "alert" });
  return [h("ul", { class: "files" }, result.files.map((file) => h("li", {},
    h("span", { class: "file-name", text: file.name }), h("span", { class: "quiet", text: size(file.bytes) }),
    button("Download", () => download(task.taskId, file.name, said), { "aria-label": `Download ${file.name}` })))), said];
});

/** The content comes through the API with the cookie; the browser saves it and never shows it as a page. */
async function download(taskId, name, said) {
  try {
    const { content } = await ask(taskPath(taskId, `/files/${encodeURIComponent(name)}`));
    const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
    const href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    const saved = h("a", { href, download: name.split("/").at(-1) });
    saved.click();
    setTimeout(() => URL.revokeObjectURL(href), 10000);
    put(said, "");
  } catch (error) {
    put(said, connection.failed(error));
  }
}
