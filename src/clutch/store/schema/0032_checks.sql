-- The results of the checks of a task, a JSON array (core/checks.CheckReport): the journal of a round under way, then its report.
ALTER TABLE tasks ADD COLUMN checks {text};
