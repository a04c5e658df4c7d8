-- What an operator sees of each node, and the switch that drains it. Rows of older versions have no values.
-- beats: heartbeats so far; a clock that is put back can repeat a time, never a count. seen_at: the last one.
-- clock_offset: seconds that the clock of its machine is ahead of the database's.
ALTER TABLE workers ADD COLUMN beats {big} NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN seen_at {float};
ALTER TABLE workers ADD COLUMN clock_offset {float};
ALTER TABLE workers ADD COLUMN draining {big} NOT NULL DEFAULT 0;

-- The oldest schema version whose gateways may open this database. A migration that breaks older code raises it.
INSERT INTO meta(name, value) VALUES('compatible_from', '19') ON CONFLICT(name) DO UPDATE SET value = excluded.value;
