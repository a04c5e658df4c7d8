-- What the complete system of subagents needs beyond the first tables.

-- Announce. A session's own way to queue; the route of a turn's reply; what a hook said about a letter's route.
ALTER TABLE sessions ADD COLUMN queue {text};
ALTER TABLE runs ADD COLUMN route {text};
ALTER TABLE inbox ADD COLUMN hook_route {text};
-- How a taken letter got there: how its route was found, and the paths that were left, as JSON.
ALTER TABLE inbox ADD COLUMN route_mode {text};
ALTER TABLE inbox ADD COLUMN tried {text};
ALTER TABLE deliveries ADD COLUMN to_depth {big};
ALTER TABLE deliveries ADD COLUMN why {text};
ALTER TABLE deliveries ADD COLUMN route_mode {text};
ALTER TABLE deliveries ADD COLUMN tried {text};
-- A result that goes to a person as it is: the task that is told of what became of it.
ALTER TABLE outbox ADD COLUMN task_id {big};
ALTER TABLE outbox ADD COLUMN generation {big};
-- What no person has heard yet.
CREATE INDEX outbox_open ON outbox(session_id) WHERE done_at IS NULL;

-- Lists: in the order of creation.
CREATE INDEX tasks_created ON tasks(created_at, id);
-- Targets: the numbers of the list that somebody was last shown.
CREATE TABLE shown(
  viewer {text} NOT NULL, number {big} NOT NULL, task_id {big} NOT NULL, PRIMARY KEY(viewer, number)){without_rowid};

-- Files a task hands over (JSON): names, sizes and hashes of what lay in its `out/` when its run ended.
ALTER TABLE tasks ADD COLUMN files {text};

-- A session whose words are gone keeps its row, which holds the tree together. What is over and not archived yet.
ALTER TABLE sessions ADD COLUMN deleted_at {float};
CREATE INDEX tasks_unarchived ON tasks(ended_at) WHERE archived_at IS NULL AND ended_at IS NOT NULL;
CREATE INDEX tasks_archived ON tasks(archived_at) WHERE archived_at IS NOT NULL;

-- Answers to writes that came with an `Idempotency-Key`, so that asking again does nothing again.
CREATE TABLE replies(
  key {text} PRIMARY KEY, request {text} NOT NULL, status {big} NOT NULL, body {text} NOT NULL, at {float} NOT NULL);
CREATE INDEX replies_at ON replies(at);

-- Peers: heartbeats, agent to agent, threads.
-- A fourth timer: when a main session looks up by itself. `wake` only ever brings it forward.
ALTER TABLE sessions ADD COLUMN heartbeat_at {float};
CREATE INDEX sessions_heartbeat ON sessions(heartbeat_at) WHERE heartbeat_at IS NOT NULL;
-- The letter that the latest run answers, where it decides what becomes of the last words; NULL: as usual.
ALTER TABLE sessions ADD COLUMN letter_id {big};
-- What heartbeats have told lately, so that it is not told again.
CREATE TABLE alerts(
  session_id {big} NOT NULL, sha {text} NOT NULL, at {float} NOT NULL, PRIMARY KEY(session_id, sha)){without_rowid};

-- Verbs: what a killed task said anyway.
ALTER TABLE tasks ADD COLUMN late_text {text};
ALTER TABLE tasks ADD COLUMN late_at {float};
-- Where the transcript ended when somebody asked for a summary: the next turn makes one before its first call.
ALTER TABLE sessions ADD COLUMN compact_at {big};

-- The stream of events: everybody's timelines in one order, from a place in it.
CREATE INDEX events_at ON events(at, task_id, seq);

-- Session mode: a task whose session outlives its end. A session with a row in `bindings` knows it, so that no other
-- has to look.
ALTER TABLE tasks ADD COLUMN stays {big} NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN bound {big} NOT NULL DEFAULT 0;
