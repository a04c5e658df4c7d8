-- The call that foreign code is making right now. Its own row, because its journal has only what is done.
CREATE TABLE doing(
  session_id {big} PRIMARY KEY, run_id {big} NOT NULL, name {text} NOT NULL, arg {text} NOT NULL, at {float} NOT NULL
){without_rowid};
