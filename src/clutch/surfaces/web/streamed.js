// Markdown that grows while a model writes it. Finished blocks are rendered once and stay; only the last block, which
// may still change, is rendered again, at most once per frame. So a piece costs the same at the end of a long answer.

import { h, perFrame } from "/web/dom.js";
import { renderMarkdown } from "/web/markdown.js";

const LEVEL = 4; // of the first heading: that of a finished answer

export class StreamedMarkdown {
  /** `around(change)` runs a change of the layout, for example to keep the end in sight. */
  constructor(around = (change) => change()) {
    this.text = "";
    this.done = 0; // characters in finished blocks
    this.last = h("div", { class: "markdown" });
    this.node = h("div", { class: "streamed" }, this.last);
    this.draw = perFrame(() => { if (this.node.isConnected) around(() => this.render()); });
  }

  add(piece) {
    this.text += piece;
    this.draw();
  }

  render() {
    const end = finished(this.text, this.done);
    if (end > this.done) {
      this.node.insertBefore(renderMarkdown(this.text.slice(this.done, end), LEVEL), this.last);
      this.done = end;
    }
    const rest = renderMarkdown(this.text.slice(this.done), LEVEL);
    this.last.replaceWith(rest);
    this.last = rest;
  }
}

/** The place behind the last empty line outside of a code block: what stands before it does not change any more. */
export function finished(text, from) {
  let [place, end, fence] = [from, from, ""];
  for (let next = text.indexOf("\n", place); next >= 0; next = text.indexOf("\n", place)) {
    const line = text.slice(place, next).trim();
    const mark = /^(```+|~~~+)/.exec(line)?.[1] ?? "";
    if (fence ? line.startsWith(fence) : mark) fence = fence ? "" : mark;
    place = next + 1;
    if (!line && !fence) end = place;
  }
  return end;
}
