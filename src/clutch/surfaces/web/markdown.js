// Markdown as DOM nodes. Every piece of text becomes a text node, so nothing that a model writes is ever parsed as HTML.
// Links open only http, https and mailto addresses, and images are shown as their text: the page fetches nothing.

import { h, visible } from "/web/dom.js";

const SAFE = /^(https?:|mailto:)/i;
// Every search for the end of a pair is bounded: a text of open marks would take the square of its length.
const INLINE = /(`{1,8})(.{1,1000}?)\1|\*\*(.{1,1000}?)\*\*|__(.{1,1000}?)__|\*([^\s*](?:.{0,1000}?[^\s*])?)\*|(?<![\w])_([^\s_](?:.{0,1000}?[^\s_])?)_(?![\w])|~~(.{1,1000}?)~~|!?\[([^[\]]{0,1000})\]\(([^()\s]*)\)/s;
let headings = { first: 3, last: 2 };
const DEPTH_MAX = 8; // of emphasis inside emphasis
const STYLED_MAX = 20000; // characters; a longer paragraph is data, and searching it for pairs would take long

/** `level`: of the first heading. No level is left out below it, whatever the text does. */
export function renderMarkdown(text, level = 3) {
  const place = h("div", { class: "markdown" });
  headings = { first: level, last: level - 1 };
  blocks(String(text).split("\n"), place);
  return place;
}

function blocks(lines, place) {
  let at = 0;
  while (at < lines.length) at = block(lines, at, place);
}

/** Render the block that begins at a line; return the line after it. */
function block(lines, at, place) {
  const line = lines[at];
  if (!line.trim()) return at + 1;
  const fence = /^ {0,3}(```+|~~~+)/.exec(line);
  if (fence) return code(lines, at, fence[1], place);
  const heading = /^ {0,3}(#{1,6})\s+(.*)$/.exec(line.trimEnd().replace(/ #+$/, ""));
  if (heading) {
    headings.last = Math.min(6, headings.first + heading[1].length - 1, headings.last + 1);
    place.append(inline(heading[2], h(`h${headings.last}`)));
    return at + 1;
  }
  if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
    place.append(h("hr"));
    return at + 1;
  }
  if (/^ {0,3}>/.test(line)) return quote(lines, at, place);
  if (ITEM.test(line)) return list(lines, at, place);
  if (line.includes("|") && cells(lines[at + 1] ?? "").every((one) => /^:?-+:?$/.test(one))) return table(lines, at, place);
  return paragraph(lines, at, place);
}

function code(lines, at, fence, place) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  place.append(h("pre", { tabindex: 0, text: lines.slice(at + 1, end).join("\n") }));
  return end + 1;
}

function quote(lines, at, place) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  const inside = h("blockquote");
  const text = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  // A long run of `>` is text, not a hundred levels.
  if (/^(> ?){5}/.test(text[0])) inside.append(visible(text.join("\n")));
  else blocks(text, inside);
  place.append(inside);
  return end;
}

const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function list(lines, at, place) {
  const isOrdered = (found) => /\d/.test(found[2]);
  const first = ITEM.exec(lines[at]);
  const made = h(isOrdered(first) ? "ol" : "ul");
  if (isOrdered(first) && parseInt(first[2], 10) !== 1) made.setAttribute("start", parseInt(first[2], 10));
  const indent = first[1].length;
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || found[1].length < indent || isOrdered(found) !== isOrdered(first)) break;
    const item = h("li");
    const task = /^\[([ xX])\]\s+(.*)$/.exec(found[3]);
    if (task) item.append(task[1] === " " ? "☐ " : "☑ ");
    inline(task ? task[2] : found[3], item);
    made.append(item);
    end += 1;
    const below = [];
    while (end < lines.length && (/^ {2,}\S/.test(lines[end]) && (ITEM.exec(lines[end])?.[1].length ?? Infinity) > indent)) below.push(lines[end++]);
    if (below.length) blocks(outdent(below), item);
  }
  place.append(made);
  return end;
}

function outdent(lines) {
  const least = Math.min(...lines.map((line) => /^ */.exec(line)[0].length));
  return lines.map((line) => line.slice(least));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());

function table(lines, at, place) {
  const head = h("tr", {}, cells(lines[at]).map((text) => inline(text, h("th", { scope: "col" }))));
  const body = h("tbody");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) body.append(h("tr", {}, cells(lines[end++]).map((text) => inline(text, h("td")))));
  place.append(h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, h("table", {}, h("thead", {}, head), body)));
  return end;
}

function paragraph(lines, at, place) {
  let end = at;
  while (end < lines.length && lines[end].trim() && (end === at || !/^ {0,3}(#{1,6}\s|>|```|~~~)/.test(lines[end]) && !ITEM.test(lines[end]))) end += 1;
  place.append(inline(lines.slice(at, end).join("\n"), h("p")));
  return end;
}

/** Put the text into a node, with emphasis, code and links. */
function inline(text, node, depth = 0) {
  let rest = text;
  while (rest) {
    const found = depth < DEPTH_MAX && text.length < STYLED_MAX ? INLINE.exec(rest) : null;
    if (!found) break;
    node.append(visible(rest.slice(0, found.index)), styled(found, depth));
    rest = rest.slice(found.index + found[0].length);
  }
  node.append(visible(rest));
  return node;
}

function styled(found, depth) {
  const [all, , codeText, strong, strong2, soft, soft2, gone, label, target] = found;
  if (codeText !== undefined) return h("code", { text: codeText });
  if (strong ?? strong2) return inline(strong ?? strong2, h("strong"), depth + 1);
  if (soft ?? soft2) return inline(soft ?? soft2, h("em"), depth + 1);
  if (gone) return inline(gone, h("del"), depth + 1);
  if (all.startsWith("!") || !SAFE.test(target)) return document.createTextNode(visible(all));
  return inline(label || target, h("a", { href: target, rel: "noreferrer noopener nofollow", target: "_blank", title: visible(target) }), depth + 1);
}
