// The field in which the user writes to a main agent.
//
// A text stays in the field until the gateway has taken it. If the answer is lost it is sent again under the same key
// when the connection is back, so it arrives once. The draft of each session survives a reload of the page.

import { ask, newKey, post, Unreachable } from "/web/api.js";
import { connection } from "/web/connection.js";
import { button, h, put } from "/web/dom.js";
import { field, openDialog } from "/web/dialogs.js";
import { Completion } from "/web/views/completion.js";
import { isWorking, sessionPath } from "/web/views/conversation.js";

const LINES_MAX_PX = 240;
const HELP = "Enter sends, Shift+Enter begins a new line. @file adds the text of a file of the workspace.";
let commands = null; // a promise of the list

function knownCommands() {
  commands ??= ask("/v1/commands").then((found) => found.commands).catch((error) => { commands = null; throw error; });
  return commands;
}

const draftKey = (session) => `clutch.draft.${session}`;

function readDraft(session) {
  try {
    return { text: "", key: null, ...JSON.parse(sessionStorage.getItem(draftKey(session)) ?? "{}") };
  } catch {
    return { text: "", key: null }; // written by an older page
  }
}

function keepDraft(session, draft) {
  if (draft.text) sessionStorage.setItem(draftKey(session), JSON.stringify(draft));
  else sessionStorage.removeItem(draftKey(session));
}

export class Composer {
  constructor(conversation) {
    this.conversation = conversation;
    this.key = conversation.key;
    this.draft = readDraft(this.key);
    this.text = h("textarea", { id: "composer", rows: 1, "aria-label": "Message to the agent", "aria-describedby": "composer-help", placeholder: "Message the agent…", value: this.draft.text });
    this.said = h("p", { class: "said", role: "status" });
    this.sendButton = h("button", { type: "submit", class: "primary", text: "Send" });
    this.stopButton = button("Stop", () => this.stop(), { class: "danger-text", hidden: true });
    this.completion = new Completion(this.text, (word) => this.suggestions(word));
    this.node = h("form", { class: "composer" }, this.completion.list, this.completion.status,
      h("div", { class: "composer-row" }, this.text, this.stopButton, this.sendButton),
      h("p", { class: "composer-foot" }, this.said, h("small", { id: "composer-help", class: "quiet keys", text: "⏎ send · ⇧⏎ new line · @ file · / command" })));
    this.node.addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    this.text.addEventListener("keydown", (event) => this.pressed(event));
    this.text.addEventListener("input", () => { this.keep(); this.grow(); if (!this.isSending) this.setSending(false, ""); });
    requestAnimationFrame(() => this.grow());
  }

  pressed(event) {
    if (this.completion.key(event)) return;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit();
  }

  /** A key belongs to the text that was sent under it: a changed text is another message. */
  keep() {
    const text = this.text.value;
    this.draft = { text, key: text === this.draft.text ? this.draft.key : null };
    keepDraft(this.key, this.draft);
  }

  grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(LINES_MAX_PX, this.text.scrollHeight + 2)}px`;
  }

  /** Show what can be done now. */
  draw(chat) {
    this.stopButton.hidden = !isWorking(chat);
    put(this.sendButton, isWorking(chat) ? "Queue" : "Send");
    if (!this.isSending && this.isSent) { this.isSent = false; put(this.said, ""); }
  }

  // ---- sending -------------------------------------------------------------------------------------------

  async submit() {
    const text = this.text.value.trim();
    if (!text || this.isSending) return;
    this.completion.close();
    const stop = /^\/stop(\s+all)?$/.exec(text);
    if (stop) return this.stopTyped(Boolean(stop[1]));
    if (text === "/help") { this.clear(); return this.showHelp(); }
    this.keep();
    this.draft.key ??= newKey();
    keepDraft(this.key, this.draft);
    await this.send();
  }

  /** Send the draft under its key. Called again after a lost connection. */
  async send() {
    const { text, key } = this.draft;
    const line = text.trim();
    this.setSending(true, "Sending");
    try {
      if (!this.conversation.chat) await this.openSession();
      if (isCommand(line)) {
        const { text: answer } = await post(sessionPath(this.key, "command"), { line }, key);
        this.conversation.say(`${line}\n${answer}`);
      } else {
        await post(sessionPath(this.key, "messages"), { text: line, files: true }, key);
      }
      this.clear();
      this.setSending(false, "sent");
      this.isSent = true;
      this.conversation.isAtEnd = true;
      await this.conversation.refresh();
    } catch (error) {
      const said = connection.failed(error);
      const isLost = error instanceof Unreachable && Boolean(this.draft.text);
      if (this.draft.text && !isLost) { this.draft.key = null; this.keep(); } // refused: a changed text is another message
      this.setSending(isLost, isLost ? "Not confirmed yet. It is sent once, when the gateway answers." : said, !isLost);
    }
  }

  /** The stream names the sessions whose text it brings, and can name only one that exists. */
  async openSession() {
    await post(`/v1/sessions/${encodeURIComponent(this.key)}`);
    connection.showLive("chat", "");
    connection.showLive("chat", this.key);
  }

  /** The gateway answers again: send what it has not confirmed. */
  async resume() {
    if (this.draft.key && this.draft.text) await this.send();
  }

  setSending(isSending, said, isError = false) {
    this.isSending = isSending;
    this.said.classList.toggle("error", isError);
    this.text.readOnly = this.sendButton.disabled = isSending;
    put(this.said, said);
  }

  clear() {
    this.text.value = "";
    this.draft = { text: "", key: null };
    keepDraft(this.key, this.draft);
    this.grow();
  }

  // ---- commands and files --------------------------------------------------------------------------------

  async suggestions(word) {
    if (word.startsWith("/")) {
      const known = [...await knownCommands(), { name: "help", usage: "/help" }];
      return known.filter((one) => `/${one.name}`.startsWith(word))
        .map((one) => ({ text: `/${one.name}`, hint: one.usage.startsWith(`/${one.name} `) ? one.usage.slice(one.name.length + 2) : "" }));
    }
    const { files } = await ask(sessionPath(this.key, `files?prefix=${encodeURIComponent(word.slice(1))}`));
    return files.map((name) => ({ text: `@${name}` }));
  }

  async showHelp() {
    const known = await knownCommands().catch((error) => { put(this.said, connection.failed(error)); return null; });
    if (known) this.conversation.say([HELP, ...known.map((one) => one.usage)].join("\n"));
  }

  // ---- stopping ------------------------------------------------------------------------------------------

  /** The button. It stops the turn; if subagents run, it asks whether they stop, too. */
  stop() {
    return this.stopping(async () => {
      const running = await this.running();
      if (running) this.confirmStop(running, false);
      else await this.halt();
    });
  }

  /** `/stop` ends the turn only, as in the terminal. `/stop all` asks before it stops subagents. */
  stopTyped(isAll) {
    return this.stopping(async () => {
      const running = isAll ? await this.running() : 0;
      if (running) return this.confirmStop(running, true, () => this.clear());
      const isStopped = this.conversation.chat !== null && await this.halt();
      this.clear();
      if (!isStopped) this.conversation.say("No turn is running here.");
    });
  }

  async stopping(act) {
    if (this.stopButton.disabled) return;
    this.stopButton.disabled = true;
    try {
      await act();
    } catch (error) {
      put(this.said, connection.failed(error));
    } finally {
      this.stopButton.disabled = false;
    }
  }

  async halt() {
    const { stopped } = await post(sessionPath(this.key, "halt"));
    await this.conversation.refresh();
    return stopped;
  }

  /** How many subagents run for this conversation, in the whole tree. */
  async running() {
    let count = 0;
    for (let cursor = ""; cursor !== null;) {
      const page = await ask(`/v1/tasks?root=${encodeURIComponent(this.key)}&state=active&limit=200${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
      count += page.tasks.length;
      cursor = page.next;
    }
    return count;
  }

  /** Subagents work for this conversation: they stop only if the user says so. */
  confirmStop(count, isWithSubagents, done = () => null) {
    const name = `${count} subagent${count === 1 ? "" : "s"}`;
    const all = h("input", { type: "checkbox" });
    all.checked = isWithSubagents;
    openDialog({
      title: "Stop this turn?",
      confirm: "Stop",
      danger: true,
      content: [h("p", { text: `The agent stops what it is doing. ${name} of this conversation ${count === 1 ? "is" : "are"} running, and ${count === 1 ? "continues" : "continue"} unless you stop ${count === 1 ? "it" : "them"}, too.` }),
        field(`Stop ${name}, too`, all)],
      act: async () => {
        if (all.checked) {
          const { text } = await post(sessionPath(this.key, "command"), { line: "/stop all" });
          this.conversation.say(text);
          await this.conversation.refresh();
        } else await this.halt();
        done();
      },
    });
  }
}

const isCommand = (text) => /^\/[a-z]+(\s|$)/.test(text);
