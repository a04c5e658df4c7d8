// Decisions: approvals, questions and plans as cards.
//
// A press must decide about the item that the user looked at. Each item has elements of its own, and the decision
// carries the id and hash of what was shown. An item that is decided is disabled at once and stays where it is until
// the pointer has left the list, so that no other item moves below the pointer. An item that came to its place less
// than SETTLED_MS ago takes no press: a touch screen has no pointer that stays. Approving a tool call takes two buttons
// in two places.

import { link } from "/web/address.js";
import { ask, isSignedOut, post, problemText } from "/web/api.js";
import { connection } from "/web/connection.js";
import { button, h, put, visible } from "/web/dom.js";

const SETTLED_MS = 1000;
const DECIDED = { answer: "Answered.", approve: "Approved.", reject: "Rejected." };
const TITLES = { approval: "Approval needed", question: "Answer needed", plan: "Plan to approve", budget: "Budget decision needed" };

export const itemKey = (item) => `${item.id} ${item.hash}`;

/** The inbox as it was loaded last; the stream says when it has changed. */
const inbox = { items: [], wanted: "", watchers: new Set() };
export const inboxItems = () => inbox.items;
export function onInbox(act) { inbox.watchers.add(act); }

export async function loadInbox() {
  const found = await ask("/v1/inbox");
  inbox.items = found.items;
  inbox.wanted = found.items.map(itemKey).join("\n");
  for (const act of inbox.watchers) act(inbox.items);
}

/** Load the inbox if it is not the one that the gateway has counted. */
export function followInbox(overview) {
  if ([...overview.inbox].sort().join("\n") === inbox.wanted.split("\n").filter(Boolean).sort().join("\n")) return;
  loadInbox().catch((error) => connection.failed(error));
}

/** A list of cards that keeps its order while it is used. */
export class Cards {
  constructor(label) {
    this.list = h("ul", { class: "cards", "aria-label": label });
    this.isPointerInside = false;
    this.places = new WeakMap(); // card -> its place in the document
    this.timers = new WeakMap(); // card -> the timer after which it takes presses
    this.list.addEventListener("pointerenter", () => { this.isPointerInside = true; });
    this.list.addEventListener("pointerleave", () => { this.isPointerInside = false; this.tidy(); });
  }

  draw(items) {
    const open = new Set(items.map(itemKey));
    for (const card of this.list.children) if (!open.has(card.dataset.key)) this.close(card, "Decided elsewhere.");
    const there = new Set([...this.list.children].map((card) => card.dataset.key));
    this.list.append(...items.filter((item) => !there.has(itemKey(item))).map((item) => this.card(item)));
    this.tidy();
  }

  /** Remove what was decided, unless that would move an item below the pointer. */
  tidy() {
    if (!this.isPointerInside) this.list.querySelectorAll("li[data-closed]").forEach((card) => card.remove());
    this.list.hidden = this.list.children.length === 0;
    this.notePlaces();
  }

  notePlaces() {
    for (const card of this.list.children) {
      const place = Math.round(card.getBoundingClientRect().top + document.getElementById("main").scrollTop + scrollY);
      if (this.places.get(card) === place) continue;
      this.places.set(card, place);
      clearTimeout(this.timers.get(card));
      this.timers.set(card, setTimeout(() => setSettled(card, true), SETTLED_MS));
      setSettled(card, false);
    }
  }

  /** A key acts on the element that has the focus. A pointer may have been aimed at what stood there before. */
  isMeant(button, click) {
    this.notePlaces();
    return click.detail === 0 || button.getAttribute("aria-disabled") !== "true";
  }

  close(card, text) {
    if (card.dataset.closed) return;
    card.dataset.closed = "1";
    card.querySelectorAll("button, textarea").forEach((one) => { one.disabled = true; });
    put(card.querySelector(".said"), text);
  }

  card(item) {
    const text = h("textarea", { rows: 1, placeholder: item.kind === "question" ? "Your answer" : "Comment (optional)" });
    text.setAttribute("aria-label", `${text.placeholder} for ${visible(item.label || item.sessionKey || item.id)}`);
    const card = h("li", { "data-key": itemKey(item) });
    card.run = null;
    const name = item.label || item.sessionKey || item.id;
    const title = item.taskId ? h("a", { href: link({ task: item.taskId }), "data-local": true, text: name }) : h("span", { text: name });
    card.append(
      h("p", { class: "card-title" }, h("strong", { text: TITLES[item.kind] ?? item.kind }), " · ", title),
      this.question(item, text), h("div", { class: "card-actions" }, text, ...this.decisions(item, card)),
      h("div", { class: "card-said" }, h("p", { class: "said", role: "alert" }), card.run));
    return card;
  }

  question(item, text) {
    const command = item.detail.args?.command;
    const main = typeof command === "string" ? h("pre", { text: command }) : h(item.kind === "question" ? "p" : "pre", { text: item.text });
    // A choice is written into the field and sent with `Answer`: one press alone decides nothing.
    const pick = (choice) => { text.value = choice; text.focus(); };
    const choices = (item.detail.choices ?? []).map((choice) => h("li", {}, button(choice, () => pick(choice))));
    return h("div", { class: "card-text" }, main, choices.length ? h("ul", { class: "choices", "aria-label": "Choices" }, choices) : null,
      typeof command === "string" && Object.keys(item.detail.args).length > 1 ? h("details", {}, h("summary", { text: "The whole call" }), h("pre", { text: item.text })) : null);
  }

  decisions(item, card) {
    const decision = (text, act, kind = "") => {
      const made = h("button", { type: "button", text, class: kind });
      made.addEventListener("click", (click) => { if (this.isMeant(made, click)) act(); });
      return made;
    };
    if (item.kind === "question") return [decision("Answer", () => this.decide(item, card, "answer"), "primary")];
    const approve = () => this.decide(item, card, "approve");
    const reject = decision("Reject", () => this.decide(item, card, "reject"));
    if (!("tool" in item.detail)) return [decision("Approve", approve, "primary"), reject];
    // `Cancel` takes the place of `Approve`, and `Reject` stays: a double click or a change of mind decides nothing.
    // `Run it` stands elsewhere, in a place that is kept free, so that no button moves.
    const confirming = (isAsked) => {
      for (const one of [cancel, run]) one.classList.toggle("absent", !isAsked);
      first.classList.toggle("absent", isAsked);
      put(card.querySelector(".said"), isAsked ? "Run this call? It starts at once." : "");
      (isAsked ? cancel : first).focus();
    };
    const cancel = decision("Cancel", () => confirming(false), "absent");
    const run = (card.run = decision("Run it", approve, "danger absent"));
    const first = decision("Approve", () => confirming(true), "primary");
    return [h("span", { class: "stack" }, first, cancel), reject];
  }

  /** Disabled from the press until the gateway refuses: one press is one decision. */
  async decide(item, card, decision) {
    const [said, text] = [card.querySelector(".said"), card.querySelector("textarea")];
    if (decision === "answer" && !text.value.trim()) return put(said, "The answer must not be blank.");
    const fields = [...card.querySelectorAll("button, textarea")];
    fields.forEach((one) => { one.disabled = true; });
    put(said, "Sending");
    try {
      await post(`/v1/inbox/${encodeURIComponent(item.id)}`, { decision, text: text.value, hash: item.hash });
      this.close(card, DECIDED[decision]);
    } catch (error) {
      fields.forEach((one) => { one.disabled = false; });
      put(said, isSignedOut(error) ? connection.failed(error) : problemText(error));
    }
    loadInbox().catch((error) => connection.failed(error));
  }
}

/** `aria-disabled` leaves the focus where it is. */
function setSettled(card, isSettled) {
  card.querySelectorAll("button").forEach((one) => one.setAttribute("aria-disabled", String(!isSettled)));
}
