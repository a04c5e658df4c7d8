// Text on the pages of the gateway. Whatever a model or a stranger wrote becomes text, never markup: there is no innerHTML
// here, and the content policy would run none of it. `put` is the only place that writes text. It shows characters that
// would be invisible or turn the reading direction as escapes, so that a person sees all of what they approve.

const HIDDEN = /[^\P{C}\n\t]|[^\P{Z} ]|\p{Default_Ignorable_Code_Point}/gu; // what `core.text.format` calls not plain

export const visible = (text) => text.replace(HIDDEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

export function put(node, text) {
  node.textContent = visible(text);
  return node;
}

export function element(name, text, className = "") {
  const made = put(document.createElement(name), text);
  made.className = className;
  return made;
}
