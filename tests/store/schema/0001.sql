-- counters: what most transactions of these tests read and write;
CREATE TABLE counters(
  id {big} PRIMARY KEY,
  value {big} NOT NULL,
  name {text}
) {without_rowid};

CREATE TABLE notes(
  id {identity},
  counter {big} NOT NULL,
  at {float},
  body {text},
  raw {blob}
);
CREATE INDEX notes_of ON notes(counter);
