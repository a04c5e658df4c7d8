// Decisions: approvals, questions, budgets and plans as cards; full ones in the Inbox, lines above the list of tasks.
//
// The decision carries the id and hash of what was shown, and an item that is decided is disabled at once. Approving a
// tool call takes two buttons in two places. A line decides only what it shows whole: all else is reviewed in the Inbox.

import { link } from "/web/address.js";
import { ask, isSignedOut, post, problemText } from "/web/api.js";
import { askerPath, body, consequences, isWhole, summary, titleOf } from "/web/carddetail.js";
import { connection } from "/web/connection.js";
import { attribute, button, h, put, visible } from "/web/dom.js";
import { secondsText } from "/web/format.js";
import { SteadyList } from "/web/steady.js";

const OPEN_MAX = 3; // lines above the list of tasks
const CONFIRM_MS = 500; // a key that bounces must not confirm
const STAY = { preventScroll: true }; // a press on what is half hidden must not move it away from the pointer
let confirmations = 0;
const DECIDED = { answer: "Answered", approve: "Approved", reject: "Rejected" };

export const itemKey = (item) => `${item.id} ${item.hash}`;

/** The inbox as it was loaded last; the stream says when it has changed. */
const inbox = { items: [], replies: [], unsent: [], wanted: "", beside: "0 ", loads: 0, shown: 0, watchers: new Set() };
export const inboxItems = () => inbox.items;
export const inboxReplies = () => inbox.replies;
export const unsentMessages = () => inbox.unsent;
export function onInbox(act) { inbox.watchers.add(act); }

export async function loadInbox() {
  const mine = ++inbox.loads;
  const found = await ask("/v1/inbox");
  if (mine < inbox.shown) return; // a later request was answered before
  inbox.shown = mine;
  inbox.items = found.items;
  inbox.replies = found.repliesIn;
  inbox.unsent = found.unsent;
  inbox.wanted = found.items.map(itemKey).join("\n");
  for (const act of inbox.watchers) act(inbox.items);
}

/** Load the inbox if it is not the one that the gateway has counted. */
export function followInbox(overview) {
  const beside = `${overview.summary.unsent} ${overview.summary.repliesIn}`; // what the inbox holds beside decisions
  if (beside === inbox.beside && [...overview.inbox].sort().join("\n") === inbox.wanted.split("\n").filter(Boolean).sort().join("\n")) return;
  inbox.beside = beside;
  loadInbox().catch((error) => connection.failed(error));
}

export class Cards extends SteadyList {
  constructor(label, { isCompact = false } = {}) {
    super(h("ul", { class: isCompact ? "cards compact" : "cards", "aria-label": label, tabindex: -1 }));
    this.isCompact = isCompact;
  }

  draw(items) {
    const open = new Set(items.map(itemKey));
    for (const card of this.list.children) if (!open.has(card.dataset.key)) this.close(card, "Decided elsewhere, or withdrawn");
    const there = new Set([...this.list.children].map((card) => card.dataset.key));
    const room = this.isCompact ? OPEN_MAX - this.openCount : Infinity;
    this.list.append(...items.filter((item) => !there.has(itemKey(item))).slice(0, Math.max(0, room)).map((item) => this.card(item)));
    this.tidy();
    this.tick();
  }

  get openCount() { return this.list.querySelectorAll(":scope > :not([data-closed])").length; }

  /** Forget all cards: another list is shown in their place. */
  reset() { this.list.replaceChildren(); }

  tick() {
    for (const { age, item, dataset } of this.list.children) {
      if (age && !dataset.closed) put(age, `waiting ${secondsText((connection.now - Date.parse(item.askedAt)) / 1000)}`);
    }
  }

  card(item) {
    const needsReview = this.isCompact && !isWhole(item);
    const card = h("li", { "data-key": itemKey(item), "data-item": item.id, "data-kind": item.kind, "data-review": needsReview, tabindex: -1 });
    const text = needsReview || (this.isCompact && item.kind !== "question") ? null : field(item);
    Object.assign(card, { item, text, confirm: null, keys: {} });
    const verdict = h("span", { class: "verdict", role: "status" });
    const actions = h("div", { class: "card-actions" }, needsReview ? review(item) : this.decisions(item, card));
    const said = h("p", { class: "said", role: "alert" });
    if (this.isCompact) {
      card.append(h("p", { class: "card-title" }, h("strong", { text: titleOf(item) }), " · ", asker(item), summary(item), verdict),
        ...choices(item, text), actions, said);
    } else {
      // What became of a card takes the place of its age: no line is added that would move the cards below.
      card.age = verdict;
      card.append(h("div", { class: "card-head" }, h("h2", { class: "card-title" }, h("strong", { text: titleOf(item) })), askerPath(item), verdict),
        body(item), ...choices(item, text), consequences(item), actions, said);
    }
    return card;
  }

  decisions(item, card) {
    const decision = (text, act, kind = "") => this.guard(h("button", { type: "button", text, class: kind }), act);
    const approve = () => this.decide(item, card, "approve");
    const refuse = () => this.decide(item, card, "reject");
    const reject = decision("Reject", refuse);
    card.keys.reject = refuse;
    if (item.kind === "question") {
      card.keys.approve = () => (card.text.value.trim() ? this.decide(item, card, "answer") : card.text.focus());
      const answer = decision("Answer", () => this.decide(item, card, "answer"), "primary");
      return this.isCompact ? [card.text, answer] : [card.text, answer, reject];
    }
    if (!("tool" in item.detail)) {
      card.keys.approve = approve;
      return [card.text, decision("Approve", approve, "primary"), reject];
    }
    return this.confirmed(card, approve, decision, reject);
  }

  /** `Cancel` takes the place of `Approve`, and `Reject` stays: a double click or a change of mind decides nothing.
   * `Run it` stands elsewhere, over the comment or in a place that is kept free, so that no button moves. */
  confirmed(card, approve, decision, reject) {
    let askedAt = null;
    const question = h("span", { id: `confirm-${++confirmations}`, text: "Run this call? It starts at once." });
    const confirming = (isAsked) => {
      askedAt = isAsked ? Date.now() : null;
      for (const one of [cancel, bar]) one.classList.toggle("absent", !isAsked);
      for (const one of [first, card.text]) one?.classList.toggle("absent", isAsked);
      (isAsked ? cancel : first).focus(STAY);
    };
    const cancel = decision("Cancel", () => confirming(false), "absent");
    const run = decision("Run it", approve, "danger");
    const first = decision("Approve", () => confirming(true), "primary");
    const bar = h("span", { class: "confirm absent" }, this.isCompact ? null : question, run);
    if (this.isCompact) cancel.title = run.title = question.textContent;
    else cancel.setAttribute("aria-describedby", question.id);
    card.keys.approve = () => {
      if (askedAt === null) confirming(true);
      else if (Date.now() - askedAt >= CONFIRM_MS) approve();
    };
    card.keys.cancel = () => {
      if (askedAt === null) return false;
      confirming(false);
      return true;
    };
    return [h("span", { class: "stack wide" }, card.text, bar), h("span", { class: "stack" }, first, cancel), reject];
  }

  /** Disabled from the press until the gateway refuses: one press is one decision. */
  async decide(item, card, decision) {
    const said = card.querySelector(".said");
    const text = card.text?.value ?? "";
    const missing = blank(item, decision, text);
    if (missing) {
      card.text?.focus(STAY);
      return put(said, missing);
    }
    const fields = [...card.querySelectorAll("button, textarea")];
    const hadFocus = card.contains(document.activeElement);
    fields.forEach((one) => { one.disabled = true; });
    if (hadFocus) card.focus(STAY);
    put(said, "Sending");
    try {
      await post(`/v1/inbox/${encodeURIComponent(item.id)}`, { decision, text, hash: item.hash });
      put(said, "");
      this.close(card, text.trim() ? `${DECIDED[decision]}: ${short(text)}` : DECIDED[decision]);
    } catch (error) {
      // An answer may have been lost on the way: what the gateway says next decides whether the card closes.
      fields.forEach((one) => { one.disabled = Boolean(card.dataset.closed); });
      put(said, isSignedOut(error) ? connection.failed(error) : problemText(error));
    }
    loadInbox().catch((error) => connection.failed(error));
  }
}

const short = (text) => (text.length > 40 ? `${text.slice(0, 40)}…` : text);

function blank(item, decision, text) {
  if (text.trim()) return "";
  if (decision === "answer") return "The answer must not be blank.";
  return decision === "reject" && item.kind === "plan" ? "Write a reason: the subagent reads it." : "";
}

const asker = (item) => {
  const name = item.label || item.sessionKey || item.id;
  return item.taskId ? h("a", { href: link({ task: item.taskId }), "data-local": true, text: name }) : h("span", { text: name });
};

const review = (item) => h("a", { class: "button", href: link({ view: "inbox", item: item.id, task: "" }), "data-local": true, text: "Review",
  "aria-label": `Review ${visible(item.label || item.id)}` });

function field(item) {
  const hint = { question: "Your answer", plan: "Comment, or the reason of a rejection" }[item.kind] ?? "Comment (optional)";
  const text = h("textarea", { rows: 1, placeholder: hint });
  text.setAttribute("aria-label", `${hint} for ${visible(item.label || item.sessionKey || item.id)}`);
  return text;
}

/** A choice is written into the field and sent with `Answer`: one press alone decides nothing. */
function choices(item, text) {
  if (!item.choices.length || !text) return [];
  const pick = (choice) => { text.value = choice; mark(); text.focus(STAY); };
  const made = item.choices.map((choice) => button(choice, () => pick(choice)));
  const mark = () => made.forEach((one, place) => attribute(one, "aria-pressed", String(item.choices[place] === text.value)));
  text.addEventListener("input", mark);
  mark();
  return [h("ul", { class: "choices", "aria-label": "Choices" }, made.map((one) => h("li", {}, one)))];
}
