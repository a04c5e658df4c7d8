-- A conversation of a client that names no session: the digest of its messages and answers up to the last answer.
ALTER TABLE sessions ADD COLUMN history {text};
CREATE INDEX sessions_history ON sessions(history) WHERE history IS NOT NULL;
