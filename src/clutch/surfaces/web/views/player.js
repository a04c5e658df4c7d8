// The slider of a timeline: the tree as it was at any moment, step by step or played.

import { connection } from "/web/connection.js";
import { attribute, button, h, put } from "/web/dom.js";
import { moment, onMoment, showMoment, shownNow } from "/web/replay.js";

const SPEEDS = [1, 10, 60];
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const STILL_MS = 500; // between two pictures for a user who wants no motion

/** `span()`: first and last moment of the tree. `events()`: its moments in order. `text(time)`: a moment in words. */
export function makePlayer({ span, events, text }) {
  let playing = null; // { at, frame } while it plays
  const slider = h("input", { type: "range", class: "moment", "aria-label": "Moment", min: 0, step: 1 });
  const speed = h("select", { "aria-label": "Speed" }, SPEEDS.map((one) => h("option", { value: one, text: `${one}×` })));
  speed.value = "10";
  const shown = h("output", { class: "moment-text" });
  const live = button("Live", () => { stop(); showMoment(null); }, { class: "live-button" });
  const play = button("Play", () => (playing ? stop() : start()), { class: "play" });
  const back = button("◀", () => step(-1), { "aria-label": "Previous event", title: "Previous event ( [ )" });
  const on = button("▶", () => step(1), { "aria-label": "Next event", title: "Next event ( ] )" });
  const bar = h("div", { class: "player", role: "group", "aria-label": "Replay" }, back, play, on, speed, slider, shown, live);

  function step(by) {
    stop();
    const [now, all] = [shownNow(), events()];
    const next = by < 0 ? all.findLast((one) => one < now) : all.find((one) => one > now);
    if (next !== undefined) showMoment(next);
    else if (by > 0) showMoment(null);
  }

  function start() {
    const { first, last } = span();
    if (moment() === null || moment() >= last) showMoment(first);
    playing = { last: performance.now() };
    draw();
    plan();
  }

  const plan = () => { playing.timer = STILL.matches ? setTimeout(advance, STILL_MS) : requestAnimationFrame(advance); };

  function advance() {
    if (!playing || !bar.isConnected) return;
    const now = performance.now();
    const time = (moment() ?? span().first) + (now - playing.last) * Number(speed.value);
    playing.last = now;
    if (time >= span().last) { stop(); return showMoment(null); }
    showMoment(time, { isMoving: true });
    plan();
  }

  function stop() {
    if (!playing) return;
    cancelAnimationFrame(playing.timer);
    clearTimeout(playing.timer);
    playing = null;
    if (moment() !== null) showMoment(moment());
    draw();
  }

  slider.addEventListener("input", () => { stop(); showMoment(span().first + Number(slider.value), { isMoving: true }); });
  slider.addEventListener("change", () => { if (moment() !== null) showMoment(moment()); });
  slider.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (by) { event.preventDefault(); step(by); }
  });

  /** Write where the slider stands. Runs with each drawing of the timeline. */
  function draw() {
    const { first, last } = span();
    const now = Math.min(Math.max(shownNow(), first), Math.max(last, first));
    attribute(slider, "max", Math.max(1, Math.round(last - first)));
    if (document.activeElement !== slider || playing || slider.value !== String(Math.round(now - first))) slider.value = String(Math.round(now - first));
    attribute(slider, "aria-valuetext", text(now));
    put(shown, text(now));
    put(play, playing ? "Pause" : "Play");
    put(live, connection.isExported ? "End" : "Live");
    attribute(live, "aria-pressed", String(moment() === null));
  }

  onMoment(draw);
  return { bar, draw, step, toggle: () => (playing ? stop() : start()), stop };
}
