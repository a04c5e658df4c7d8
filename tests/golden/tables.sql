CREATE TABLE alerts(
  session_id INTEGER NOT NULL, sha TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY(session_id, sha))WITHOUT ROWID;
CREATE TABLE bindings(
  channel TEXT NOT NULL, account TEXT NOT NULL, thread TEXT NOT NULL, session_id INTEGER NOT NULL,
  bound_at REAL NOT NULL, used_at REAL NOT NULL, PRIMARY KEY(channel, account, thread))WITHOUT ROWID;
CREATE TABLE blobs(name TEXT PRIMARY KEY, content BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE calls(
  session_id INTEGER NOT NULL, seq INTEGER NOT NULL, idx INTEGER NOT NULL, run_id INTEGER NOT NULL, name TEXT NOT NULL,
  replay_safe INTEGER NOT NULL, remote TEXT, PRIMARY KEY(session_id, seq, idx))WITHOUT ROWID;
CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL)WITHOUT ROWID;
CREATE TABLE deliveries(
  id INTEGER PRIMARY KEY AUTOINCREMENT, task_id INTEGER NOT NULL, generation INTEGER NOT NULL, letter TEXT NOT NULL, to_session INTEGER NOT NULL,
  attempt INTEGER NOT NULL, at REAL NOT NULL, path TEXT, outcome TEXT NOT NULL, reason TEXT NOT NULL,
  next_at REAL, run_id INTEGER, transcript_seq INTEGER, to_depth INTEGER, why TEXT, route_mode TEXT, tried TEXT, detail TEXT NOT NULL DEFAULT '');
CREATE TABLE doing(
  session_id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, name TEXT NOT NULL, arg TEXT NOT NULL, at REAL NOT NULL
)WITHOUT ROWID;
CREATE TABLE events(
  task_id INTEGER NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, actor TEXT NOT NULL, from_phase TEXT NOT NULL,
  to_phase TEXT NOT NULL, reason TEXT NOT NULL, generation INTEGER NOT NULL, outcome TEXT, detail TEXT NOT NULL DEFAULT '',
  PRIMARY KEY(task_id, seq))WITHOUT ROWID;
CREATE TABLE inbox(
  id INTEGER PRIMARY KEY AUTOINCREMENT, session_id INTEGER NOT NULL, idem TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, silent INTEGER NOT NULL,
  body TEXT NOT NULL, route TEXT NOT NULL, task_id INTEGER, generation INTEGER, bubbled_from INTEGER, late INTEGER NOT NULL DEFAULT 0,
  at REAL NOT NULL, ready_at REAL NOT NULL, expires_at REAL, seen INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 0, taken_run INTEGER, taken_seq INTEGER, path TEXT, hook_route TEXT, route_mode TEXT, tried TEXT, attempts INTEGER NOT NULL DEFAULT 0);
CREATE TABLE lanes(name TEXT PRIMARY KEY, cap INTEGER NOT NULL, passed INTEGER NOT NULL DEFAULT 0, positions TEXT NOT NULL DEFAULT '')WITHOUT ROWID;
CREATE TABLE mcp_servers(name TEXT PRIMARY KEY, seen_at REAL NOT NULL)WITHOUT ROWID;
CREATE TABLE mcp_tools(
  server TEXT NOT NULL, tool TEXT NOT NULL, definition TEXT NOT NULL, PRIMARY KEY(server, tool))WITHOUT ROWID;
CREATE TABLE messages(
  session_id INTEGER NOT NULL, seq INTEGER NOT NULL, run_id INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  at REAL NOT NULL, PRIMARY KEY(session_id, seq))WITHOUT ROWID;
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE outbox(
  id INTEGER PRIMARY KEY AUTOINCREMENT, idem TEXT NOT NULL UNIQUE, session_id INTEGER NOT NULL, channel TEXT NOT NULL, target TEXT NOT NULL,
  body TEXT NOT NULL, owner INTEGER, attempts INTEGER NOT NULL DEFAULT 0, due REAL, done_at REAL, receipt TEXT, error TEXT, task_id INTEGER, generation INTEGER, outcome TEXT, tried_at REAL);
CREATE TABLE provider_limits(name TEXT PRIMARY KEY, state TEXT NOT NULL)WITHOUT ROWID;
CREATE TABLE purses(
  name TEXT PRIMARY KEY, kind TEXT NOT NULL, tokens_max INTEGER, usd_max TEXT,
  tokens_spent INTEGER NOT NULL DEFAULT 0, tokens_reserved INTEGER NOT NULL DEFAULT 0,
  usd_spent TEXT NOT NULL DEFAULT '0', usd_reserved TEXT NOT NULL DEFAULT '0',
  unpriced_calls INTEGER NOT NULL DEFAULT 0, warned INTEGER NOT NULL DEFAULT 0)WITHOUT ROWID;
CREATE TABLE push_keys(id INTEGER PRIMARY KEY, private TEXT NOT NULL, public TEXT NOT NULL)WITHOUT ROWID;
CREATE TABLE push_subscriptions(
  device TEXT PRIMARY KEY, endpoint TEXT NOT NULL, p256dh TEXT NOT NULL, auth TEXT NOT NULL,
  until REAL NOT NULL)WITHOUT ROWID;
CREATE TABLE questions(
  id INTEGER PRIMARY KEY, session_id INTEGER NOT NULL, seq INTEGER NOT NULL, idx INTEGER NOT NULL, kind TEXT NOT NULL,
  body TEXT NOT NULL, hash TEXT NOT NULL, asked_at REAL NOT NULL, answered_at REAL, decision TEXT,
  answer TEXT, actor TEXT, UNIQUE(session_id, seq, idx));
CREATE TABLE replies(
  key TEXT PRIMARY KEY, request TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE runs(
  id INTEGER PRIMARY KEY, session_id INTEGER NOT NULL, generation INTEGER NOT NULL, by_person INTEGER NOT NULL,
  parked_until REAL, crashes INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  progress_head INTEGER NOT NULL DEFAULT 0, started_at REAL NOT NULL, ended_at REAL, stop_reason TEXT, route TEXT, state TEXT NOT NULL DEFAULT 'running', traced INTEGER NOT NULL DEFAULT 0);
CREATE TABLE schedule_slots(
  schedule_id INTEGER NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, first_slot INTEGER NOT NULL,
  last_slot INTEGER NOT NULL, slots INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  detail TEXT NOT NULL, task_id INTEGER, PRIMARY KEY(schedule_id, seq)
)WITHOUT ROWID;
CREATE TABLE schedules(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, source TEXT NOT NULL,
  cursor INTEGER NOT NULL, queue TEXT NOT NULL, runs INTEGER NOT NULL, resumed_at INTEGER NOT NULL,
  paused INTEGER NOT NULL, next_at REAL, task_id INTEGER, budget TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE TABLE sessions(
  id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, agent_id TEXT NOT NULL,
  parent_id INTEGER, root_id INTEGER NOT NULL, depth INTEGER NOT NULL, lane TEXT NOT NULL, role TEXT NOT NULL,
  is_task INTEGER NOT NULL, rights TEXT NOT NULL, route TEXT, model TEXT, thinking TEXT, workspace TEXT,
  purses TEXT NOT NULL DEFAULT '', -- names of the budgets it draws on, fixed at birth
  owner INTEGER, fence INTEGER NOT NULL DEFAULT 0, head INTEGER NOT NULL DEFAULT 0, base INTEGER NOT NULL DEFAULT 0,
  due REAL, hold INTEGER NOT NULL DEFAULT 0, hold_until REAL, paused INTEGER NOT NULL DEFAULT 0,
  closed INTEGER NOT NULL DEFAULT 0, run_id INTEGER, progress_at REAL, idle_at REAL, created_at REAL NOT NULL, queue TEXT, deleted_at REAL, heartbeat_at REAL, letter_id INTEGER, compact_at INTEGER, bound INTEGER NOT NULL DEFAULT 0, history TEXT, place TEXT, saved TEXT, share TEXT NOT NULL DEFAULT 'default', priority INTEGER NOT NULL DEFAULT 1);
CREATE TABLE shown(
  viewer TEXT NOT NULL, number INTEGER NOT NULL, task_id INTEGER NOT NULL, PRIMARY KEY(viewer, number))WITHOUT ROWID;
CREATE TABLE sqlite_sequence(name,seq);
CREATE TABLE system_events(
  id INTEGER PRIMARY KEY AUTOINCREMENT, session_id INTEGER NOT NULL, body TEXT NOT NULL, at REAL NOT NULL, taken_run INTEGER);
CREATE TABLE tasks(
  id INTEGER PRIMARY KEY, requester_id INTEGER NOT NULL, root_id INTEGER NOT NULL, depth INTEGER NOT NULL,
  spawn_order INTEGER NOT NULL, idem TEXT NOT NULL, label TEXT NOT NULL, task TEXT NOT NULL, spec TEXT NOT NULL,
  timeout_s REAL NOT NULL, expects_completion INTEGER NOT NULL, has_cleanup INTEGER NOT NULL,
  seq INTEGER NOT NULL, phase TEXT NOT NULL, reason TEXT NOT NULL, generation INTEGER NOT NULL,
  outcome TEXT, error TEXT, result TEXT, fallback TEXT,
  delivery TEXT NOT NULL, delivery_reason TEXT NOT NULL, attempts INTEGER NOT NULL,
  plan TEXT NOT NULL, plan_round INTEGER NOT NULL,
  wake_at REAL, deadline_at REAL, clock_left_s REAL, started_at REAL, ended_at REAL,
  created_at REAL NOT NULL, result_sha TEXT, value TEXT, evidence TEXT, retained INTEGER NOT NULL DEFAULT 1, archived_at REAL, files TEXT, late_text TEXT, late_at REAL, stays INTEGER NOT NULL DEFAULT 0, shelf INTEGER NOT NULL DEFAULT 0, detail TEXT NOT NULL DEFAULT '', notify_parent INTEGER NOT NULL DEFAULT 1, checks TEXT);
CREATE TABLE trace_exporter(
  id INTEGER PRIMARY KEY, identity TEXT NOT NULL, since REAL NOT NULL, owner INTEGER)WITHOUT ROWID;
CREATE TABLE usage(
  session_id INTEGER NOT NULL, call_no INTEGER NOT NULL, run_id INTEGER NOT NULL, at REAL NOT NULL,
  state INTEGER NOT NULL DEFAULT 0, model TEXT NOT NULL, effective TEXT,
  reserved_tokens INTEGER NOT NULL DEFAULT 0, reserved_usd TEXT,
  input INTEGER NOT NULL DEFAULT 0, output INTEGER NOT NULL DEFAULT 0, cache_read INTEGER NOT NULL DEFAULT 0,
  cache_write INTEGER NOT NULL DEFAULT 0, usd TEXT, calls INTEGER NOT NULL DEFAULT 1, PRIMARY KEY(session_id, call_no))WITHOUT ROWID;
CREATE TABLE workers(
  id INTEGER PRIMARY KEY, lease_until REAL NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
  version TEXT NOT NULL, started_at REAL NOT NULL, beats INTEGER NOT NULL DEFAULT 0, seen_at REAL, clock_offset REAL, draining INTEGER NOT NULL DEFAULT 0, place TEXT, lease_s REAL);
CREATE INDEX bindings_session ON bindings(session_id);
CREATE INDEX deliveries_run ON deliveries(run_id) WHERE run_id IS NOT NULL;
CREATE INDEX deliveries_task ON deliveries(task_id);
CREATE INDEX events_at ON events(at, task_id, seq);
CREATE INDEX inbox_dead ON inbox(session_id, id) WHERE state = 2;
CREATE INDEX inbox_new ON inbox(session_id) WHERE seen = 0;
CREATE INDEX inbox_open ON inbox(session_id, id) WHERE state = 0;
CREATE INDEX inbox_said ON inbox(session_id, id) WHERE kind IN ('user', 'request');
CREATE INDEX inbox_task ON inbox(task_id) WHERE task_id IS NOT NULL;
CREATE INDEX outbox_due ON outbox(due) WHERE due IS NOT NULL;
CREATE INDEX outbox_open ON outbox(session_id) WHERE done_at IS NULL;
CREATE INDEX outbox_owner ON outbox(owner) WHERE owner IS NOT NULL;
CREATE INDEX questions_open ON questions(session_id) WHERE answered_at IS NULL;
CREATE INDEX replies_at ON replies(at);
CREATE INDEX runs_crashed ON runs(session_id) WHERE crashes > 0 AND ended_at IS NULL;
CREATE UNIQUE INDEX runs_open ON runs(session_id) WHERE ended_at IS NULL;
CREATE INDEX runs_session ON runs(session_id);
CREATE INDEX runs_untraced ON runs(ended_at) WHERE traced = 0 AND ended_at IS NOT NULL;
CREATE INDEX schedules_next ON schedules(next_at) WHERE next_at IS NOT NULL;
CREATE INDEX sessions_due ON sessions(lane, due, id) WHERE owner IS NULL AND due IS NOT NULL;
CREATE INDEX sessions_heartbeat ON sessions(heartbeat_at) WHERE heartbeat_at IS NOT NULL;
CREATE INDEX sessions_history ON sessions(history) WHERE history IS NOT NULL;
CREATE INDEX sessions_leftover ON sessions(id) WHERE deleted_at IS NOT NULL AND head > 0;
CREATE INDEX sessions_main ON sessions(id) WHERE is_task = 0;
CREATE INDEX sessions_owner ON sessions(owner, lane) WHERE owner IS NOT NULL;
CREATE INDEX sessions_parent ON sessions(parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sessions_saved ON sessions(id) WHERE saved IS NOT NULL;
CREATE INDEX sessions_share_roots ON sessions(lane, priority, share, root_id, due, id) WHERE owner IS NULL AND due IS NOT NULL;
CREATE INDEX sessions_shares ON sessions(lane, priority, share, due, id) WHERE owner IS NULL AND due IS NOT NULL;
CREATE INDEX system_events_new ON system_events(session_id) WHERE taken_run IS NULL;
CREATE INDEX tasks_alive ON tasks(root_id, depth)
  WHERE phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup';
CREATE INDEX tasks_archived ON tasks(archived_at) WHERE archived_at IS NOT NULL;
CREATE INDEX tasks_created ON tasks(created_at, id);
CREATE INDEX tasks_finished ON tasks(ended_at, id) WHERE outcome IS NOT NULL;
CREATE UNIQUE INDEX tasks_idem ON tasks(requester_id, idem);
CREATE INDEX tasks_retained ON tasks(requester_id) WHERE retained = 1;
CREATE INDEX tasks_tree ON tasks(root_id, id);
CREATE INDEX tasks_unarchived ON tasks(ended_at) WHERE archived_at IS NULL AND ended_at IS NOT NULL;
CREATE INDEX tasks_undelivered ON tasks(root_id) WHERE delivery = 'undelivered';
CREATE INDEX tasks_untold ON tasks(requester_id)
  WHERE phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup';
CREATE INDEX tasks_wake ON tasks(wake_at) WHERE wake_at IS NOT NULL;
