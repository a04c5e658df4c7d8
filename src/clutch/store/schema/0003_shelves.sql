-- Which of its directories the files of a task lie in: it gets another when it works again after they were to go, so
-- that whoever removes the old one late does not meet the new one.
ALTER TABLE tasks ADD COLUMN shelf {big} NOT NULL DEFAULT 0;
