-- What the complete system of subagents needs beyond the first tables.

-- Lists: in the order of creation, and what ended lately.
CREATE INDEX tasks_created ON tasks(created_at, id);
CREATE INDEX tasks_ended ON tasks(ended_at) WHERE ended_at IS NOT NULL;

-- Answers to writes that came with an `Idempotency-Key`, so that asking again does nothing again.
CREATE TABLE replies(
  key {text} PRIMARY KEY, request {text} NOT NULL, status {big} NOT NULL, body {text} NOT NULL, at {float} NOT NULL);
CREATE INDEX replies_at ON replies(at);
