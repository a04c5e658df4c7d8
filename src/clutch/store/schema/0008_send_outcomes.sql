-- How the last attempt to send a message ended (failed, refused, unsure), and when. `error` has the reason.
ALTER TABLE outbox ADD COLUMN outcome {text};
ALTER TABLE outbox ADD COLUMN tried_at {float};
UPDATE outbox SET outcome = 'unsure', error = 'no answer' WHERE error = 'unsure' AND done_at IS NULL;
UPDATE outbox SET outcome = 'failed' WHERE error IS NOT NULL AND outcome IS NULL AND done_at IS NULL;
