-- A row of the ledger may stand for several calls: those of a quarter of an hour, once they are old.
ALTER TABLE usage ADD COLUMN calls {big} NOT NULL DEFAULT 1;
-- Deleted sessions whose transcript is so long that it takes several commits. Nearly always there are none.
CREATE INDEX {concurrently} sessions_leftover ON sessions(id) WHERE deleted_at IS NOT NULL AND head > 0;
