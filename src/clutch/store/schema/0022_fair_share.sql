-- The roots that have sessions to claim, one after the other, and the first sessions of each.
CREATE INDEX {concurrently} sessions_roots ON sessions(lane, root_id, due, id) WHERE owner IS NULL AND due IS NOT NULL;
