-- The messages of users in a session, in order: what stands around one of them is asked each time a response is read.
CREATE INDEX {concurrently} inbox_said ON inbox(session_id, id) WHERE kind IN ('user', 'request');
