// The page: it signs in, connects, shows the view that the address names, and passes events on.
//
// To add a view: write `views/NAME.js` with `{ name, title, count(overview), show(place), load() }` and add it to VIEWS.
// `show` fills the place once; `load` reads what the view shows and returns the cursor of the answer, or null.

import { at, follow, onMove } from "/web/address.js";
import { connection } from "/web/connection.js";
import { startFrame, showNotice, showView } from "/web/frame.js";
import { apply, setOverview } from "/web/store.js";
import { startWorker } from "/web/push.js";
import { startTabs } from "/web/tabs.js";
import { chatView } from "/web/views/chat.js";
import { costsView } from "/web/views/costs.js";
import { devicesView } from "/web/views/devices.js";
import { healthView } from "/web/views/health.js";
import { inboxView } from "/web/views/inbox.js";
import { startPanel } from "/web/views/panel.js";
import { tasksView } from "/web/views/tasks.js";
import { timelineView } from "/web/views/timeline.js";
import { undeliveredView } from "/web/views/undelivered.js";

const VIEWS = [
  tasksView,
  inboxView,
  chatView,
  costsView,
  undeliveredView,
  healthView,
  devicesView,
];
const TREE_VIEWS = [timelineView]; // of one tree, reached from its tasks and not from the navigation
let shown = null;

const viewOf = (address) => [...VIEWS, ...TREE_VIEWS].find((one) => one.name === address.view) ?? VIEWS[0];

function show() {
  const wanted = viewOf(at());
  if (wanted === shown) return;
  shown = wanted;
  connection.useLoader(shown.load);
  showView(shown);
}

document.addEventListener("click", follow);
startFrame(VIEWS);
startTabs(VIEWS);
startWorker();
startPanel();
onMove((now, before) => {
  if (viewOf(now) === viewOf(before)) return;
  show();
  shown.load().catch((error) => showNotice("view", connection.failed(error)));
});
connection.on(["lifecycle:start", "lifecycle:end", "lifecycle:error", "phase", "announce", "question", "progress"], apply);
connection.on("overview", setOverview);
show();
showNotice("sign-in", await connection.start());
connection.onChange((state) => { if (state === "live") showNotice("sign-in", ""); });
