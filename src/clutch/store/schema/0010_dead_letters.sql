-- Results that were given up stand in transcripts: every turn looks for those of its session.
CREATE INDEX inbox_dead ON inbox(session_id, id) WHERE state = 2;
