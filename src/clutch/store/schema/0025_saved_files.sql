-- Sessions whose stored files a sweep may have to delete. Apart from the column, because it is built beside writers.
CREATE INDEX {concurrently} sessions_saved ON sessions(id) WHERE saved IS NOT NULL;
