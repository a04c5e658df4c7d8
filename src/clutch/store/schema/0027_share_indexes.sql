-- The first sessions of each share and priority; its roots, one after the other, and the first sessions of each.
CREATE INDEX {concurrently} sessions_shares ON sessions(lane, priority, share, due, id) WHERE owner IS NULL AND due IS NOT NULL;
CREATE INDEX {concurrently} sessions_share_roots ON sessions(lane, priority, share, root_id, due, id) WHERE owner IS NULL AND due IS NOT NULL;
DROP INDEX sessions_roots;
