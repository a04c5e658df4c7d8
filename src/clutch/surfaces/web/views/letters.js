// One card for each result or message that could not be delivered: why, to whom, since when, and the text in place.

import { link } from "/web/address.js";
import { ask, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { h, put } from "/web/dom.js";
import { clock } from "/web/format.js";
import { renderMarkdown } from "/web/markdown.js";
import { SteadyList } from "/web/steady.js";

const attemptsText = (count) => (count === 1 ? "1 attempt" : `${count} attempts`);

export class Letters extends SteadyList {
  constructor(label) {
    super(h("ul", { class: "cards letters", "aria-label": label, tabindex: -1 }));
  }

  /** `wanted`: `[{ key, make(card) }]`. `said(key)`: what became of one that is not wanted any more. */
  draw(wanted, said) {
    const keys = new Set(wanted.map((one) => one.key));
    for (const card of this.list.children) if (!keys.has(card.dataset.key)) this.close(card, said(card.dataset.key));
    const there = new Set([...this.list.children].filter((card) => !card.dataset.closed).map((card) => card.dataset.key));
    for (const { key, make } of wanted.filter((one) => !there.has(one.key))) {
      const card = h("li", { "data-key": key, tabindex: -1 });
      make(card);
      this.list.append(card);
    }
    this.tidy();
  }

  reset() { this.list.replaceChildren(); }

  ofTask(card, task, actions) {
    card.dataset.task = task.taskId;
    const title = h("a", { href: link({ task: task.taskId, tab: "result" }), "data-local": true, text: task.label || task.taskId });
    this.fill(card, title, task.delivery.text, [
      ["Task", `${task.taskId} · ${task.status}`],
      ["Parent", parentOf(task)],
      ["Given up", `${clock(task.delivery.at ?? task.endedAt)} after ${attemptsText(task.delivery.attempts)}`],
    ], [folded("Result", (place) => showResult(place, task)), folded("Delivery attempts", (place) => showAttempts(place, task))], actions);
  }

  ofMessage(card, message, actions) {
    const outcome = { failed: "not sent", refused: "refused by the channel", unsure: "may not have arrived" }[message.outcome] ?? message.outcome;
    this.fill(card, h("span", { text: `${message.channel} → ${message.target}` }), message.error ? `${outcome} (${message.error})` : outcome, [
      ["Session", message.sessionKey ?? "n/a"],
      ["Last attempt", `${message.triedAt === null ? "n/a" : clock(message.triedAt)}, ${attemptsText(message.attempts)}`],
    ], [folded("Text", (place) => place.append(renderMarkdown(message.text, 3)))], actions);
  }

  fill(card, title, cause, lines, texts, actions) {
    const said = h("p", { class: "said", role: "alert" });
    const buttons = Object.entries(actions).map(([text, act]) =>
      this.guard(h("button", { type: "button", text, class: text.startsWith("Discard") ? "danger-text" : "primary" }), () => this.act(card, said, act)));
    card.append(
      h("div", { class: "card-head" }, h("h2", { class: "card-title" }, title), h("span", { class: "verdict", role: "status" })),
      h("p", { class: "error", text: cause }),
      h("dl", {}, lines.map(([name, value]) => [h("dt", { text: name }), value instanceof Node ? h("dd", {}, value) : h("dd", { text: value })])),
      ...texts, h("div", { class: "card-actions" }, said, buttons));
  }

  async act(card, said, act) {
    const buttons = [...card.querySelectorAll("button")];
    buttons.forEach((one) => { one.disabled = true; });
    put(said, "");
    try {
      await act();
    } catch (error) {
      put(said, connection.failed(error));
    } finally {
      if (!card.dataset.closed) buttons.forEach((one) => { one.disabled = false; });
    }
  }
}

function parentOf(task) {
  const name = task.requesterKey ?? "gone (deleted)";
  if (task.parentTaskId) return h("a", { href: link({ task: task.parentTaskId, tab: "activity" }), "data-local": true, text: name });
  return task.requesterKey ? h("a", { href: link({ view: "tasks", session: task.requesterKey, agent: "" }), "data-local": true, text: name }) : name;
}

/** A text that is loaded when it is opened. */
function folded(title, show) {
  const place = h("div", { class: "card-text", tabindex: 0, role: "group", "aria-label": title });
  const made = h("details", {}, h("summary", { text: title }), place);
  made.addEventListener("toggle", async () => {
    if (!made.open || place.childNodes.length) return;
    try {
      await show(place);
    } catch (error) {
      put(place, connection.failed(error));
    }
  });
  return made;
}

async function showResult(place, task) {
  const { text } = await ask(taskPath(task.taskId, "/result"));
  place.append(text ? renderMarkdown(text, 3) : h("p", { class: "quiet", text: task.errorText ?? "There is no final text." }));
}

async function showAttempts(place, task) {
  const { deliveries } = await ask(taskPath(task.taskId, "/why"));
  const words = (one) => [one.outcome, one.reason, one.toSession && `to ${one.toSession}`].filter(Boolean).join(" · ");
  place.append(deliveries.length
    ? h("ul", { class: "timeline" }, deliveries.map((one) => h("li", {}, h("time", { text: one.at === null ? "" : clock(one.at) }), h("span", { text: words(one) }))))
    : h("p", { class: "quiet", text: "It was given up without an attempt." }));
}
