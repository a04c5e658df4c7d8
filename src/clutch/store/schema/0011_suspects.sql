-- Open runs that were executing at a death of their process; nearly always empty.
CREATE INDEX runs_crashed ON runs(session_id) WHERE crashes > 0 AND ended_at IS NULL;
