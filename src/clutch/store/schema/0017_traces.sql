-- Traces (OpenTelemetry). `traced`: a collector has acknowledged the spans of the run. A mark on the row, not a position
-- in an order: commits of several machines become visible in no order that a position could rely on.
ALTER TABLE runs ADD COLUMN traced {big} NOT NULL DEFAULT 0;
CREATE INDEX runs_untraced ON runs(ended_at) WHERE traced = 0 AND ended_at IS NOT NULL;
CREATE INDEX deliveries_run ON deliveries(run_id) WHERE run_id IS NOT NULL;
-- One row, made by the first gateway that exports: what all ids of spans are derived from, the moment from which runs
-- are exported, and the process that exports now.
CREATE TABLE trace_exporter(
  id {big} PRIMARY KEY, identity {text} NOT NULL, since {float} NOT NULL, owner {big}){without_rowid};
