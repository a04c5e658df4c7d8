// A list in which nothing moves below the pointer.
//
// A press must act on the item that the user looked at. New items come last. An item that is over stays in its place
// for KEPT_MS, and leaves then only if that moves nothing below the pointer. An item that came to its place less than
// SETTLED_MS ago takes no press: a touch screen has no pointer that stays, and a message above the list moves all of it.

import { perFrame, put } from "/web/dom.js";

const SETTLED_MS = 1000;
const KEPT_MS = 5000;
const GAP = 24; // between two items, at most
const LOOK_MS = 250; // what stands above a list changes without a word to the list

const lists = new Set();
let pointer = null; // where it is in the window; null: outside, or a finger that was lifted
const main = () => document.getElementById("main");

const tidyAll = perFrame(() => { for (const one of lists) one.tidy(); });

function follow(event) {
  pointer = { x: event.clientX, y: event.clientY };
  tidyAll();
}

function lose() {
  pointer = null;
  tidyAll();
}

addEventListener("pointermove", follow, true);
addEventListener("pointerdown", follow, true);
addEventListener("pointerup", (event) => { if (event.pointerType === "touch") lose(); }, true);
document.documentElement.addEventListener("pointerleave", lose);
setInterval(() => { for (const one of lists) if (one.list.isConnected) one.notePlaces(); }, LOOK_MS);

export class SteadyList {
  constructor(list) {
    this.list = list;
    this.places = new WeakMap(); // item -> its place in the document
    this.timers = new WeakMap(); // item -> the timer after which it takes presses
    lists.add(this);
  }

  /** Disable an item that is over, and say what became of it. It leaves later. */
  close(item, text) {
    if (item.dataset.closed) return;
    item.dataset.closed = "kept";
    const hadFocus = item.contains(document.activeElement);
    item.querySelectorAll("button, textarea").forEach((one) => { one.disabled = true; });
    if (hadFocus) item.focus({ preventScroll: true });
    put(item.querySelector(".verdict"), text);
    setTimeout(() => { item.dataset.closed = "over"; this.tidy(); }, KEPT_MS);
  }

  tidy() {
    for (const item of this.list.querySelectorAll(":scope > [data-closed=over]")) if (this.mayLeave(item)) this.drop(item);
    this.list.hidden = this.list.children.length === 0;
    this.notePlaces();
    this.onTidy();
  }

  /** Runs after each change of what is there. */
  onTidy() {}

  drop(item) {
    const hadFocus = item.contains(document.activeElement);
    // No other item is selected instead: a key that was meant for this one must not reach it.
    this.last = hadFocus ? item.nextElementSibling : this.last;
    item.remove();
    if (hadFocus) this.list.focus({ preventScroll: true });
  }

  /** Whether nothing below the pointer moves when this item goes: all that stands below it moves up, and if the page
   * becomes too short for its scroll position, everything moves down. */
  mayLeave(item) {
    if (!pointer || !this.list.isConnected) return true;
    const room = main().getBoundingClientRect();
    if (pointer.x < room.left || pointer.x > room.right || pointer.y < room.top || pointer.y > room.bottom) return true;
    if (this.list.scrollHeight > this.list.clientHeight) return false;
    const { top, height } = item.getBoundingClientRect();
    const { scrollHeight, clientHeight, scrollTop } = main();
    return pointer.y < top && (scrollTop === 0 || scrollHeight - height - GAP - clientHeight >= scrollTop);
  }

  notePlaces() {
    const scrolled = main().scrollTop + scrollY + this.list.scrollTop;
    for (const item of this.list.children) {
      const place = Math.round(item.getBoundingClientRect().top + scrolled);
      if (this.places.get(item) === place) continue;
      this.places.set(item, place);
      clearTimeout(this.timers.get(item));
      this.timers.set(item, setTimeout(() => setSettled(item, true), SETTLED_MS));
      setSettled(item, false);
    }
  }

  /** A key acts on the element that has the focus. A pointer may have been aimed at what stood there before. */
  isMeant(pressed, click) {
    this.notePlaces();
    return click.detail === 0 || pressed.getAttribute("aria-disabled") !== "true";
  }

  /** A button that acts only when it was meant. */
  guard(made, act) {
    made.addEventListener("click", (click) => { if (this.isMeant(made, click)) act(); });
    return made;
  }
}

/** `aria-disabled` leaves the focus where it is. */
function setSettled(item, isSettled) {
  item.querySelectorAll("button").forEach((one) => one.setAttribute("aria-disabled", String(!isSettled)));
}
