-- The event needs_me has a plain name; what waits to be sent under the old one is sent under the new one.
UPDATE outbox SET target = 'attention_required' WHERE channel = 'hook' AND target = 'needs_me' AND done_at IS NULL;
