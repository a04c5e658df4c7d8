-- What the complete system of subagents needs beyond the first tables.

-- Lists: in the order of creation, and what ended lately.
CREATE INDEX tasks_created ON tasks(created_at, id);
CREATE INDEX tasks_ended ON tasks(ended_at) WHERE ended_at IS NOT NULL;
