-- Where the files of a session lie, and what was stored of them for the other machines of a fleet.
-- place: the state directory, by the name it gave itself; NULL: the session has no files. saved: names the list of files.
ALTER TABLE sessions ADD COLUMN place {text};
ALTER TABLE sessions ADD COLUMN saved {text};
ALTER TABLE workers ADD COLUMN place {text};
