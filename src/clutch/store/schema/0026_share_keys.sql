-- The share a session's slot belongs to, and its priority (core/fair_share.py): 0 high, 1 normal, 2 low.
ALTER TABLE sessions ADD COLUMN share {text} NOT NULL DEFAULT 'default';
ALTER TABLE sessions ADD COLUMN priority {big} NOT NULL DEFAULT 1;
-- How often in a row the session that has waited longest was passed over, and where the next claim continues to read.
ALTER TABLE lanes ADD COLUMN passed {big} NOT NULL DEFAULT 0;
ALTER TABLE lanes ADD COLUMN positions {text} NOT NULL DEFAULT '';
