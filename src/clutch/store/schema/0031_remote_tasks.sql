-- The task of another server that carries out an open call: after a crash it is asked for again in place of a new call.
ALTER TABLE calls ADD COLUMN remote {text};
