-- Lists of finished tasks, newest first.
CREATE INDEX tasks_finished ON tasks(ended_at, id) WHERE outcome IS NOT NULL;
