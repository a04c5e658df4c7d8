-- The tables. Small integers everywhere; the only text key that is ever joined on is a session's public key,
-- and only once, when somebody types it. Timers are three columns: tasks.wake_at, sessions.due, outbox.due.
-- Truth values are 0 and 1. Times are seconds since the epoch.

CREATE TABLE counters(name {text} PRIMARY KEY, value {big} NOT NULL){without_rowid};
INSERT INTO counters(name, value) VALUES('process', 0);

-- Lock rows and caps of the lanes; on PostgreSQL a claim locks the row of its lane.
CREATE TABLE lanes(name {text} PRIMARY KEY, cap {big} NOT NULL){without_rowid};
INSERT INTO lanes(name, cap) VALUES('main', 4);
INSERT INTO lanes(name, cap) VALUES('subagent', 8);

-- A live process. Deleted when buried.
CREATE TABLE workers(
  id {big} PRIMARY KEY, lease_until {float} NOT NULL, host {text} NOT NULL, pid {big} NOT NULL,
  version {text} NOT NULL, started_at {float} NOT NULL);

-- The unit of ownership: a conversation with an inbox. A child's session has the number of its task.
CREATE TABLE sessions(
  id {big} PRIMARY KEY, key {text} NOT NULL UNIQUE, agent_id {text} NOT NULL,
  parent_id {big}, root_id {big} NOT NULL, depth {big} NOT NULL, lane {text} NOT NULL, role {text} NOT NULL,
  is_task {big} NOT NULL, rights {text} NOT NULL, route {text}, model {text}, thinking {text}, workspace {text},
  purses {text} NOT NULL DEFAULT '', -- names of the budgets it draws on, fixed at birth
  owner {big}, fence {big} NOT NULL DEFAULT 0, head {big} NOT NULL DEFAULT 0, base {big} NOT NULL DEFAULT 0,
  due {float}, hold {big} NOT NULL DEFAULT 0, hold_until {float}, paused {big} NOT NULL DEFAULT 0,
  closed {big} NOT NULL DEFAULT 0, run_id {big}, progress_at {float}, idle_at {float}, created_at {float} NOT NULL);
CREATE INDEX sessions_due ON sessions(lane, due, id) WHERE owner IS NULL AND due IS NOT NULL;
CREATE INDEX sessions_owner ON sessions(owner, lane) WHERE owner IS NOT NULL;
CREATE INDEX sessions_parent ON sessions(parent_id) WHERE parent_id IS NOT NULL;

-- Work one session delegated to another.
CREATE TABLE tasks(
  id {big} PRIMARY KEY, requester_id {big} NOT NULL, root_id {big} NOT NULL, depth {big} NOT NULL,
  spawn_order {big} NOT NULL, idem {text} NOT NULL, label {text} NOT NULL, task {text} NOT NULL, spec {text} NOT NULL,
  timeout_s {float} NOT NULL, expects_completion {big} NOT NULL, has_cleanup {big} NOT NULL,
  seq {big} NOT NULL, phase {text} NOT NULL, reason {text} NOT NULL, generation {big} NOT NULL,
  outcome {text}, error {text}, result {text}, fallback {text},
  delivery {text} NOT NULL, delivery_reason {text} NOT NULL, attempts {big} NOT NULL,
  plan {text} NOT NULL, plan_round {big} NOT NULL,
  wake_at {float}, deadline_at {float}, clock_left_s {float}, started_at {float}, ended_at {float},
  created_at {float} NOT NULL, result_sha {text}, value {text}, evidence {text}, retained {big} NOT NULL DEFAULT 1, archived_at {float});
CREATE UNIQUE INDEX tasks_idem ON tasks(requester_id, idem);
-- SQLite uses a partial index only for a query that repeats its condition word for word (protocol.sessions.IS_UNTOLD).
CREATE INDEX tasks_untold ON tasks(requester_id)
  WHERE phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup';
CREATE INDEX tasks_alive ON tasks(root_id, depth)
  WHERE phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup';
CREATE INDEX tasks_retained ON tasks(requester_id) WHERE retained = 1;
CREATE INDEX tasks_undelivered ON tasks(root_id) WHERE delivery = 'undelivered';
CREATE INDEX tasks_tree ON tasks(root_id, id);
CREATE INDEX tasks_wake ON tasks(wake_at) WHERE wake_at IS NOT NULL;

-- One execution of a session. At most one is open per session.
CREATE TABLE runs(
  id {big} PRIMARY KEY, session_id {big} NOT NULL, generation {big} NOT NULL, by_person {big} NOT NULL,
  parked_until {float}, crashes {big} NOT NULL DEFAULT 0, failures {big} NOT NULL DEFAULT 0,
  progress_head {big} NOT NULL DEFAULT 0, started_at {float} NOT NULL, ended_at {float}, stop_reason {text});
CREATE UNIQUE INDEX runs_open ON runs(session_id) WHERE ended_at IS NULL;
CREATE INDEX runs_session ON runs(session_id);

-- The transcript is the journal: gap-free, append-only.
CREATE TABLE messages(
  session_id {big} NOT NULL, seq {big} NOT NULL, run_id {big} NOT NULL, kind {text} NOT NULL, body {text} NOT NULL,
  at {float} NOT NULL, PRIMARY KEY(session_id, seq)){without_rowid};

-- The ledger of tool calls, known by the answer that made them and the place in it: providers repeat ids.
-- A call is open while its answer is the last message of the transcript: results are always the next one.
CREATE TABLE calls(
  session_id {big} NOT NULL, seq {big} NOT NULL, idx {big} NOT NULL, run_id {big} NOT NULL, name {text} NOT NULL,
  replay_safe {big} NOT NULL, PRIMARY KEY(session_id, seq, idx)){without_rowid};

-- Letters. state: 0 open, 1 answered, 2 dead, 3 void. taken_seq: where it stands in the transcript, once and for ever.
CREATE TABLE inbox(
  id {identity}, session_id {big} NOT NULL, idem {text} NOT NULL UNIQUE, kind {text} NOT NULL, silent {big} NOT NULL,
  body {text} NOT NULL, route {text} NOT NULL, task_id {big}, generation {big}, bubbled_from {big}, late {big} NOT NULL DEFAULT 0,
  at {float} NOT NULL, ready_at {float} NOT NULL, expires_at {float}, seen {big} NOT NULL,
  state {big} NOT NULL DEFAULT 0, taken_run {big}, taken_seq {big}, path {text});
CREATE INDEX inbox_open ON inbox(session_id, id) WHERE state = 0;
CREATE INDEX inbox_new ON inbox(session_id) WHERE seen = 0;
CREATE INDEX inbox_task ON inbox(task_id) WHERE task_id IS NOT NULL;

-- Messages from us to people and hooks.
CREATE TABLE outbox(
  id {identity}, idem {text} NOT NULL UNIQUE, session_id {big} NOT NULL, channel {text} NOT NULL, target {text} NOT NULL,
  body {text} NOT NULL, owner {big}, attempts {big} NOT NULL DEFAULT 0, due {float}, done_at {float}, receipt {text}, error {text});
CREATE INDEX outbox_due ON outbox(due) WHERE due IS NOT NULL;
CREATE INDEX outbox_owner ON outbox(owner) WHERE owner IS NOT NULL;

-- The timeline of a task; equal phases are a note.
CREATE TABLE events(
  task_id {big} NOT NULL, seq {big} NOT NULL, at {float} NOT NULL, actor {text} NOT NULL, from_phase {text} NOT NULL,
  to_phase {text} NOT NULL, reason {text} NOT NULL, generation {big} NOT NULL, outcome {text},
  PRIMARY KEY(task_id, seq)){without_rowid};

-- The trace of telling: one row per attempt.
CREATE TABLE deliveries(
  id {identity}, task_id {big} NOT NULL, generation {big} NOT NULL, letter {text} NOT NULL, to_session {big} NOT NULL,
  attempt {big} NOT NULL, at {float} NOT NULL, path {text}, outcome {text} NOT NULL, reason {text} NOT NULL,
  next_at {float}, run_id {big}, transcript_seq {big});
CREATE INDEX deliveries_task ON deliveries(task_id);

-- The ledger of model calls: a row before the call is sent, its cost after. Outlives the transcript.
-- state: 0 sent or about to be, 1 answered, 2 cut: nobody knows what it cost, 3 refused by the provider.
CREATE TABLE usage(
  session_id {big} NOT NULL, call_no {big} NOT NULL, run_id {big} NOT NULL, at {float} NOT NULL,
  state {big} NOT NULL DEFAULT 0, model {text} NOT NULL, effective {text},
  reserved_tokens {big} NOT NULL DEFAULT 0, reserved_usd {text},
  input {big} NOT NULL DEFAULT 0, output {big} NOT NULL DEFAULT 0, cache_read {big} NOT NULL DEFAULT 0,
  cache_write {big} NOT NULL DEFAULT 0, usd {text}, PRIMARY KEY(session_id, call_no)){without_rowid};

-- A budget and what is gone of it: a task's with everything below it, a root's, a day's.
CREATE TABLE purses(
  name {text} PRIMARY KEY, kind {text} NOT NULL, tokens_max {big}, usd_max {text},
  tokens_spent {big} NOT NULL DEFAULT 0, tokens_reserved {big} NOT NULL DEFAULT 0,
  usd_spent {text} NOT NULL DEFAULT '0', usd_reserved {text} NOT NULL DEFAULT '0',
  unpriced_calls {big} NOT NULL DEFAULT 0, warned {big} NOT NULL DEFAULT 0){without_rowid};

-- What a person must decide before a run goes on: about one call of the answer at `seq`, or (idx -1) a budget.
CREATE TABLE questions(
  id {big} PRIMARY KEY, session_id {big} NOT NULL, seq {big} NOT NULL, idx {big} NOT NULL, kind {text} NOT NULL,
  body {text} NOT NULL, hash {text} NOT NULL, asked_at {float} NOT NULL, answered_at {float}, decision {text},
  answer {text}, actor {text}, UNIQUE(session_id, seq, idx));
CREATE INDEX questions_open ON questions(session_id) WHERE answered_at IS NULL;

CREATE TABLE system_events(
  id {identity}, session_id {big} NOT NULL, body {text} NOT NULL, at {float} NOT NULL, taken_run {big});
CREATE INDEX system_events_new ON system_events(session_id) WHERE taken_run IS NULL;

CREATE TABLE bindings(
  channel {text} NOT NULL, account {text} NOT NULL, thread {text} NOT NULL, session_id {big} NOT NULL,
  bound_at {float} NOT NULL, used_at {float} NOT NULL, PRIMARY KEY(channel, account, thread)){without_rowid};
CREATE INDEX bindings_session ON bindings(session_id);
