// Everything else about a task: who works on it and with what, limits, budget, attempts, and why it is in its state.

import { ask, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { h, soon } from "/web/dom.js";
import { clock, money, tokens, usedTokens } from "/web/format.js";
import { facts } from "/web/views/result.js";

const READ_MS = 300;

export function detailsTab(place, task) {
  const about = h("section");
  const why = h("section");
  place.append(about, why);
  let latest = task;
  const read = soon(() => { if (why.isConnected) explain(why, latest.taskId); }, READ_MS);
  about.replaceChildren(facts(figures(task)));
  explain(why, task.taskId);
  return (now) => {
    latest = now;
    about.replaceChildren(facts(figures(now)));
    read();
  };
}

const moment = (at) => (at === null ? "n/a" : clock(at));

function figures(task) {
  const { own, subtree } = task.usage;
  return [
    ["Status", task.status],
    ["Task", task.taskId],
    ["Agent", task.agentId ?? "n/a"],
    ["Model", task.model ?? task.modelRequested ?? "n/a"],
    ...(task.share ? [["Share", task.share]] : []),
    ...(task.priority === "normal" ? [] : [["Priority", task.priority]]),
    ["Session", task.sessionKey ?? "n/a"],
    ["Parent", task.requesterKey ?? "n/a"],
    ["Created", moment(task.createdAt)],
    ["Started", moment(task.startedAt)],
    ["Ended", moment(task.endedAt)],
    ["Time limit", task.deadlineAt === null ? "none" : `until ${clock(task.deadlineAt)}`],
    ["Attempt", String(task.attempt)],
    ["Step", String(task.step)],
    ["Resumed after a restart", String(task.resumes)],
    ["Model calls", `${own.calls}, with subagents ${subtree.calls}`],
    ["Tokens", `${usedTokens(own)}, with subagents ${usedTokens(subtree)}`],
    ["Cost", `${money(own.usd)}, with subagents ${money(subtree.usd)}`],
    ["Budget", budget(task.budget)],
    ["Delivery", task.delivery.text || "n/a"],
    ...(task.error ? [["Error", task.error]] : []),
  ];
}

function budget(found) {
  if (found === null) return "none of its own";
  const parts = [];
  if (found.tokens !== null) parts.push(`${tokens(found.spent.tokens)} of ${tokens(found.tokens)} tokens`);
  if (found.usd !== null) parts.push(`${money(found.spent.usd)} of ${money(found.usd)}`);
  return parts.join(", ");
}

async function explain(place, taskId) {
  try {
    const { timeline, stuck, deliveries } = await ask(taskPath(taskId, "/why"));
    place.replaceChildren(
      h("h3", { text: "Why it is in this state" }),
      ...(stuck ? [h("p", { class: "warning", text: `Blocked on ${stuck.gate}. Unblocks when: ${stuck.opensWhen}` }), stuck.command ? h("pre", { class: "plain", text: stuck.command }) : null].filter(Boolean) : []),
      h("ol", { class: "timeline" }, timeline.map((one) => h("li", {}, h("time", { datetime: one.at, text: clock(one.at) }), h("span", { text: one.text })))),
      ...(deliveries.length ? [h("h3", { text: "Delivery attempts" }), h("ol", { class: "timeline" }, deliveries.map((one) => h("li", {}, h("time", { text: one.at ? clock(one.at) : "" }), h("span", { text: [one.toSession, one.path, one.outcome, one.reason].filter(Boolean).join(" · ") }))))] : []));
  } catch (error) {
    connection.failed(error);
  }
}
