// One conversation with a main agent.
//
// The gateway has the truth: entries of the transcript, by number, and messages that the agent has not read yet. Each
// read returns both as of one moment and continues after the last known entry, so after a reconnect nothing is missing
// or doubled. The event `chat` of the page's stream says that there is something new. The text that a model writes at
// this moment comes with the same stream, whose parameter `live` names the sessions that the page shows: a stream of its
// own would be one more connection, and its events would have no order with those of the first.

import { ask, Refused } from "/web/api.js";
import { inboxItems, itemKey } from "/web/cards.js";
import { connection } from "/web/connection.js";
import { arrange, button, h, put } from "/web/dom.js";
import { secondsText } from "/web/format.js";
import { StreamedMarkdown } from "/web/streamed.js";
import * as store from "/web/store.js";
import { askCard, endCalls, isPerson, messageEntry, partialEntry, personEntry, systemEntry } from "/web/views/entries.js";
import { isSpawn } from "/web/views/spawncard.js";

const PAGE = 50;
const TASKS = 100; // subagents that are read with the conversation; older ones when their card is shown
const NEAR_PX = 80;

export const sessionPath = (key, rest) => `/v1/sessions/${encodeURIComponent(key)}/${rest}`;

export class Conversation {
  /** `onRead(conversation)` runs when something new was shown. */
  constructor(key, onRead) {
    this.key = key;
    this.onRead = onRead;
    this.chat = null; // as the gateway sent it last; null: there is no such session yet
    this.reset();
    this.older = button("Load earlier", () => this.loadEarlier(), { class: "earlier", hidden: true });
    this.log = h("div", { class: "log", role: "log", "aria-label": "Messages", "aria-live": "off" });
    this.asks = h("div", { class: "asks" });
    this.streams = h("div", { class: "entry-agent streams" });
    this.state = h("p", { class: "turn-state" });
    this.unread = h("div", { class: "unread-messages" });
    this.empty = h("p", { class: "nothing", text: "No messages yet. Write the first one below.", hidden: true });
    this.newest = button("Jump to newest", () => this.toEnd(), { class: "newest", hidden: true });
    this.place = h("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": "Conversation" },
      this.older, this.empty, this.log, this.streams, this.asks, this.state, this.unread);
    this.node = h("div", { class: "conversation" }, this.place, this.newest);
    this.place.addEventListener("scroll", () => this.markEnd());
    new ResizeObserver(() => { if (this.isAtEnd) this.toEnd(); }).observe(this.place);
  }

  reset() {
    this.last = 0; // number of the last entry that is shown
    this.first = null;
    this.answer = null; // the last answer, whose calls may be open
    this.segments = []; // texts of model calls that are in no entry yet
    this.ended = new Set(); // runs whose end is shown
    this.pieceAt = -Infinity; // when the last piece came
    this.isAtEnd = true;
    this.log?.replaceChildren();
  }

  close() { this.isClosed = true; }

  // ---- reading -------------------------------------------------------------------------------------------

  /** Read what is new. One request at a time: an older answer must not come after a newer one. */
  refresh() {
    this.again = Boolean(this.reading);
    this.reading ??= this.readAll().finally(() => { this.reading = null; });
    return this.reading;
  }

  async readAll() {
    do {
      this.again = false;
      const askedAt = store.asking();
      const found = await this.read();
      if (this.isClosed) return;
      this.hasNewerText = this.pieceAt >= askedAt; // the answer may not know yet of the turn that writes it
      this.around(() => (found ? this.apply(found) : this.showEmpty()));
      this.again ||= Boolean(found?.more);
    } while (this.again);
  }

  async read() {
    // The last entry is read again: its turn may have ended without another one.
    const place = this.last ? `after=${this.last - 1}` : `limit=${PAGE}`;
    try {
      if (!this.hasTasks) await this.readTasks();
      return await ask(sessionPath(this.key, `conversation?${place}`));
    } catch (error) {
      if (error instanceof Refused && error.code === "not_found") return null;
      throw error;
    }
  }

  async readTasks() {
    const askedAt = store.asking();
    const page = await ask(`/v1/tasks?root=${encodeURIComponent(this.key)}&limit=${TASKS}`);
    for (const one of page.tasks) store.keep(one, askedAt);
    this.hasTasks = true;
  }

  apply(found) {
    if (this.chat && found.chat.head < this.last) { this.reset(); this.again = true; return; } // deleted, and begun anew
    this.chat = found.chat;
    if (!this.last) this.setEarlier(found.earlier);
    const fresh = found.messages.filter((one) => one.seq > this.last);
    for (const message of fresh) this.append(message, found.delivered);
    if (!isWorking(this.chat) && this.hasNewerText) this.again = true; // until the answer is newer than the text
    else {
      if (!isWorking(this.chat)) this.dropSegments(found.turns);
      this.drawTurns(found.turns);
    }
    this.drawUnread(found.waiting);
    this.drawAsks();
    this.empty.hidden = this.last > 0 || found.waiting.length > 0 || this.log.children.length > 0;
    this.log.setAttribute("aria-live", "polite"); // from now on: what is new, not what was there
    this.onRead(this);
  }

  showEmpty() {
    this.empty.hidden = this.log.children.length > 0;
    this.drawState();
  }

  append(message, delivered) {
    this.last = message.seq;
    if (message.kind === "results") return endCalls(this.answer, message);
    const made = messageEntry(message, delivered.filter((one) => one.seq === message.seq));
    if (message.kind === "answer") { this.answer = made; made.isOpen = made.calls.length > 0; this.dropSegment(message.body.text ?? ""); }
    made.message = message;
    this.log.append(made);
    this.lastEntry = made;
    this.lastAt = Date.parse(message.at);
  }

  async loadEarlier() {
    if (this.older.disabled) return;
    this.older.disabled = true;
    try {
      const found = await ask(sessionPath(this.key, `conversation?before=${this.first}&limit=${PAGE}`));
      const made = this.entriesOf(found);
      const height = this.place.scrollHeight - this.place.scrollTop;
      this.log.setAttribute("aria-live", "off");
      this.log.prepend(...made);
      this.drawTurns(found.turns);
      this.setEarlier(found.earlier);
      this.place.scrollTop = this.place.scrollHeight - height; // what the user reads stays where it is
    } catch (error) {
      this.say(connection.failed(error), "error");
    } finally {
      this.older.disabled = false;
      (this.older.hidden ? this.place : this.older).focus({ preventScroll: true });
    }
  }

  entriesOf(found) {
    const made = [];
    let answer = null;
    for (const message of found.messages) {
      if (message.kind === "results") { endCalls(answer, message); continue; }
      const one = messageEntry(message, found.delivered.filter((each) => each.seq === message.seq));
      if (message.kind === "answer") answer = one;
      made.push(one);
    }
    return made;
  }

  setEarlier(earlier) {
    this.first = earlier;
    this.older.hidden = earlier === null;
  }

  // ---- what happens now ----------------------------------------------------------------------------------

  /** A piece of text, or the end of a model call, from the stream. */
  live(name, data) {
    if (name === "assistant:text") {
      this.pieceAt = store.asking();
      this.segment().add(data.text);
      // The read of the end came before this piece: without another one the piece would stay below the whole answer.
      if (this.chat && !isWorking(this.chat)) this.refresh().catch((error) => connection.failed(error));
    } else if (name === "usage" && this.segments.at(-1)?.text.trim()) this.segments.at(-1).isClosed = true;
    this.drawState();
  }

  segment() {
    const last = this.segments.at(-1);
    if (last && !last.isClosed) return last;
    const made = new StreamedMarkdown((change) => this.around(change));
    this.segments.push(made);
    this.streams.append(made.node);
    return made;
  }

  /** An answer was read: its text is not shown as a stream any more. A stream that was joined late has only a part. */
  dropSegment(text) {
    const [first] = this.segments;
    if (!first || !text.trim()) return;
    if (first.isClosed || text.includes(first.text.trim())) this.segments.shift().node.remove();
  }

  dropSegments(turns) {
    const left = this.segments.map((one) => one.text).join("").trim();
    const isCut = turns.some((one) => (one.stopped || one.error) && !this.ended.has(one.runId));
    if (left && isCut) this.log.append(partialEntry(left));
    this.dropStream();
  }

  /** Pieces may be missing: what comes now is shown, and the whole answer when it is finished. */
  dropStream() {
    this.segments = [];
    this.streams.replaceChildren();
  }

  drawTurns(turns) {
    for (const turn of turns) {
      if (turn.endedAt === null || this.ended.has(turn.runId) || !(turn.stopped || turn.error)) continue;
      this.ended.add(turn.runId);
      const line = systemEntry(turn.stopped ? "Stopped." : `This turn failed: ${turn.error}`, turn.stopped ? "" : "error");
      const mine = this.log.querySelectorAll(`[data-run="${CSS.escape(turn.runId)}"]`);
      const after = [...mine].at(-1);
      if (after && after !== this.lastEntry) after.after(line);
      else this.log.append(line);
      mine.forEach((one) => one.querySelectorAll(".call[data-state=running]").forEach((call) => { call.dataset.state = "failed"; put(call.parts.state, "not finished"); }));
      if (this.answer && [...mine].includes(this.answer)) this.answer.isOpen = false;
    }
  }

  drawUnread(waiting) {
    const known = new Map([...this.unread.children].map((one) => [one.dataset.letter, one]));
    const wanted = waiting.map((one) => {
      const made = known.get(one.letterId) ?? personEntry(one.text, one.at);
      made.dataset.letter = one.letterId;
      put(made.state, isWorking(this.chat) ? "queued until this turn ends · " : "sent · ");
      return made;
    });
    arrange(this.unread, wanted);
  }

  asked() { return inboxItems().filter((item) => item.path.some((one) => one.sessionKey === this.key)); }

  /** Decisions that this agent or its subagents wait for. */
  drawAsks() {
    const mine = this.asked();
    const known = new Map([...this.asks.children].map((one) => [one.dataset.key, one]));
    arrange(this.asks, mine.map((item) => known.get(itemKey(item)) ?? askCard(item)));
    this.drawState();
  }

  /** What the agent does, and whether it has seen the last message. */
  drawState() {
    const text = this.stateText();
    put(this.state, text);
    this.state.hidden = !text;
    const seen = this.lastEntry?.message && isPerson(this.lastEntry.message) ? this.lastEntry : null;
    if (this.seen && this.seen !== seen) put(this.seen.state, "");
    this.seen = seen;
    if (seen) put(seen.state, isWorking(this.chat) ? "seen · " : "");
    this.place.setAttribute("aria-busy", String(isWorking(this.chat)));
  }

  stateText() {
    const { status, since, children } = this.chat ?? {};
    const seconds = secondsText((connection.now - Math.max(this.lastAt ?? 0, Date.parse(since ?? 0) || 0)) / 1000);
    if (status === "running") {
      const open = this.answer?.isOpen ? this.answer.calls.filter(({ call }) => !isSpawn(call)).map(({ call }) => call.name) : [];
      if (open.length) return `${[...new Set(open)].join(", ")} · ${seconds}`;
      return this.segments.some((one) => !one.isClosed) ? "" : `thinking… ${seconds}`;
    }
    if (status === "waiting" && children) {
      // A plan that is not decided keeps the results of all others from the agent, and so its answer from the user.
      const plans = this.asked().filter((item) => item.kind === "plan").map((item) => `“${item.label || item.taskId}”`);
      const held = plans.length ? ` · the answer waits for your decision about the plan of ${plans.join(", ")}` : "";
      return `waiting for ${children} subagent${children === 1 ? "" : "s"}${held}`;
    }
    if (status === "failing") return "The model call failed. It is tried again.";
    return { queued: "queued", waiting: "waiting" }[status] ?? "";
  }

  tick() {
    if (this.chat?.status === "running") this.drawState();
  }

  /** Show a line of the page itself. */
  say(text, kind = "") {
    this.isAtEnd = true;
    this.around(() => { this.log.append(systemEntry(text, kind)); this.lastEntry = null; this.empty.hidden = true; });
  }

  // ---- the end of the scroll -----------------------------------------------------------------------------

  /** Change the content. A reader at the end stays there; a reader who scrolled up keeps the place. */
  around(change) {
    const { scrollHeight } = this.place;
    change();
    if (this.isAtEnd) this.toEnd();
    else if (this.place.scrollHeight !== scrollHeight) this.newest.hidden = false;
  }

  toEnd() {
    this.place.scrollTop = this.place.scrollHeight;
    this.isAtEnd = true;
    this.newest.hidden = true;
  }

  markEnd() {
    this.isAtEnd = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < NEAR_PX;
    this.newest.hidden = this.isAtEnd;
  }
}

export const isWorking = (chat) => ["running", "failing", "needs an answer"].includes(chat?.status);
