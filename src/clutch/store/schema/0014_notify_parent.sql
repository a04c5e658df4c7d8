-- A program that reads the result itself needs no turn of the parent agent.
ALTER TABLE tasks ADD COLUMN notify_parent {big} NOT NULL DEFAULT 1;
