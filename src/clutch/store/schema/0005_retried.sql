-- How often a turn that read a letter has failed before its model answered. A result has its count in `tasks`.
ALTER TABLE inbox ADD COLUMN attempts {big} NOT NULL DEFAULT 0;
