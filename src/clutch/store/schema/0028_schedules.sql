-- Schedules, and what became of their newest slots. spec: JSON (core/schedule.py). source: who owns it, "user" or
-- "config". cursor: every slot up to it is decided or waits in `queue`, a JSON list. next_at: when it is looked at again,
-- empty while it is paused or after its end. task_id: of its last run. Moments of slots are whole seconds since 1970.
CREATE TABLE schedules(
  id {big} PRIMARY KEY, name {text} NOT NULL UNIQUE, spec {text} NOT NULL, source {text} NOT NULL,
  cursor {big} NOT NULL, queue {text} NOT NULL, runs {big} NOT NULL, resumed_at {big} NOT NULL,
  paused {big} NOT NULL, next_at {float}, task_id {big}, budget {text} NOT NULL, created_at {float} NOT NULL
);
CREATE INDEX schedules_next ON schedules(next_at) WHERE next_at IS NOT NULL;
-- first, last, count: one slot, or several in a row that were skipped for the same reason. A run beside the slots has
-- the moment of its start.
CREATE TABLE schedule_slots(
  schedule_id {big} NOT NULL, seq {big} NOT NULL, at {float} NOT NULL, first_slot {big} NOT NULL,
  last_slot {big} NOT NULL, slots {big} NOT NULL, state {text} NOT NULL, reason {text} NOT NULL,
  detail {text} NOT NULL, task_id {big}, PRIMARY KEY(schedule_id, seq)
){without_rowid};
