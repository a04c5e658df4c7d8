// Suggestions for the word before the cursor of a text field: files after @, commands after / at the beginning.
//
// The field keeps the focus. The arrow keys move through a list box that the field controls, Enter or Tab takes the
// marked line, Escape closes the list.

import { attribute, h, put } from "/web/dom.js";

const WORD = /(?:^|\s)(@[^\s@]*)$/;
const COMMAND = /^(\/[a-z]*)$/;

export class Completion {
  /** `find(word)` returns lines `{ text, hint }`, each a replacement of the whole word. */
  constructor(field, find) {
    this.field = field;
    this.find = find;
    this.looks = 0;
    this.lines = [];
    this.list = h("ul", { id: `${field.id}-list`, role: "listbox", class: "completions", "aria-label": "Suggestions", hidden: true });
    this.status = h("p", { class: "hidden-text", role: "status" });
    for (const [name, value] of [["aria-autocomplete", "list"], ["aria-controls", this.list.id], ["aria-haspopup", "listbox"]]) field.setAttribute(name, value);
    field.addEventListener("input", () => this.look());
    field.addEventListener("click", () => this.close());
    field.addEventListener("blur", () => this.close());
    this.list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the field keeps the focus
      const line = event.target.closest("[role=option]");
      if (line) this.take(Number(line.dataset.place));
    });
  }

  get isOpen() { return !this.list.hidden; }

  word() {
    const before = this.field.value.slice(0, this.field.selectionStart);
    return COMMAND.exec(before)?.[1] ?? WORD.exec(before)?.[1] ?? null;
  }

  async look() {
    const mine = ++this.looks;
    const word = this.word();
    if (word === null) return this.close();
    const found = await this.find(word).catch(() => []);
    if (mine !== this.looks || this.word() !== word) return; // more was typed meanwhile
    if (!found.length || (found.length === 1 && found[0].text === word)) return this.close();
    this.lines = found;
    this.list.replaceChildren(...found.map((one, place) => h("li", { role: "option", id: `${this.list.id}-${place}`, "data-place": place, "aria-selected": "false" },
      h("span", { text: one.text }), one.hint ? h("span", { class: "quiet", text: one.hint }) : null)));
    this.list.hidden = false;
    put(this.status, `${found.length} suggestion${found.length === 1 ? "" : "s"}`);
    this.mark(0);
  }

  mark(place) {
    this.at = (place + this.lines.length) % this.lines.length;
    [...this.list.children].forEach((one, number) => attribute(one, "aria-selected", String(number === this.at)));
    attribute(this.field, "aria-activedescendant", `${this.list.id}-${this.at}`);
    this.list.children[this.at].scrollIntoView({ block: "nearest" });
  }

  take(place) {
    const word = this.word();
    const chosen = this.lines[place]?.text;
    this.close();
    if (word === null || chosen === undefined) return;
    const end = this.field.selectionStart;
    // A folder is gone into; anything else is followed by what the user types next.
    this.field.setRangeText(chosen.endsWith("/") ? chosen : `${chosen} `, end - word.length, end, "end");
    this.field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  close() {
    this.looks += 1;
    this.list.hidden = true;
    put(this.status, "");
    attribute(this.field, "aria-activedescendant", null);
  }

  /** Handle a key while the list is open; true: it was for the list. */
  key(event) {
    if (!this.isOpen || event.isComposing) return false;
    if (event.key === "ArrowDown") this.mark(this.at + 1);
    else if (event.key === "ArrowUp") this.mark(this.at - 1);
    else if (event.key === "Escape") this.close();
    else if ((event.key === "Enter" && !event.shiftKey) || event.key === "Tab") this.take(this.at);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }
}
