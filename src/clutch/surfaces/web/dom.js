// Elements and text. Everything that a model, a user or a file name brings becomes text here, never markup: there is no
// innerHTML in this folder, and the content policy of the page would run none of it.

// What a reader cannot see, or what turns the reading direction, is shown as an escape: a user must not approve what
// they cannot see. The same characters as `core.text.format.is_plain` refuses.
const HIDDEN = /[^\P{C}\n\t]|[^\P{Z} ]|\p{Default_Ignorable_Code_Point}/gu;

export const visible = (text) => String(text).replace(HIDDEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

/** Write text into an element, and only if it differs: an unchanged row costs no layout. */
export function put(node, text) {
  const shown = visible(text ?? "");
  if (node.textContent !== shown) node.textContent = shown;
  return node;
}

/** Make an element. `text` is its text, `on` its listeners, `class` its classes; all others are attributes. */
export function h(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") put(made, value);
    else if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (key === "class") made.className = value;
    else if (key === "value") made.value = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

/** The text as children of an element, which may break a path or a dotted name behind each of its parts. */
export const breakable = (text) => visible(text).split(/(?<=[./](?=\S))/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));

/** Set an attribute only if it differs; null removes it. */
export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Bring the children of a list into the wanted order. Elements that stay are moved only if they are out of place, so
 * that focus, selection and open details survive. */
export function arrange(list, wanted) {
  const keep = new Set(wanted);
  for (const child of [...list.children]) if (!keep.has(child)) child.remove();
  let place = list.firstElementChild;
  for (const one of wanted) {
    if (one === place) place = place.nextElementSibling;
    else list.insertBefore(one, place);
  }
}

/** Run `act` once in the next frame, however often it is asked for. A hidden tab has no frames: a timer stands in. */
export function perFrame(act) {
  let planned = false;
  return () => {
    if (planned) return;
    planned = true;
    const run = () => { planned = false; act(); };
    if (document.hidden) setTimeout(run, 250);
    else requestAnimationFrame(run);
  };
}

/** Run `act` when `ms` have passed since it was first asked for. */
export function soon(act, ms) {
  let timer = null;
  return () => { timer ??= setTimeout(() => { timer = null; act(); }, ms); };
}

export const button = (text, act, given = {}) => h("button", { type: "button", text, ...given, on: { click: act } });

/** An element with text and classes: what most of the API page is made of. */
export const element = (name, text, className = "") => h(name, { text, class: className });
