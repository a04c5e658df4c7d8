-- Contents of files that other machines may need: what was given to a task, and what it handed over.
CREATE TABLE blobs(name {text} PRIMARY KEY, content {blob} NOT NULL, at {float} NOT NULL);
