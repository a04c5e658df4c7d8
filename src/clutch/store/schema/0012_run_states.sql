-- A run has a state, and `parked_until` is a time or nothing. It had four meanings before.
ALTER TABLE runs ADD COLUMN state TEXT NOT NULL DEFAULT 'running';
UPDATE runs SET state = CASE WHEN ended_at IS NOT NULL THEN 'ended' WHEN parked_until IS NULL THEN 'running'
  WHEN parked_until = 1e18 THEN 'asking' WHEN parked_until = 0 THEN 'answered' ELSE 'parked' END;
UPDATE runs SET parked_until = NULL WHERE state <> 'parked';
