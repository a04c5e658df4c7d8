-- What people have approved of the tools of MCP servers, for every process that shares this database.

-- A server that was seen: what it offers beyond its rows in mcp_tools waits for a person.
CREATE TABLE mcp_servers(name {text} PRIMARY KEY, seen_at {float} NOT NULL){without_rowid};
-- A tool as it was approved, word for word (canonical JSON).
CREATE TABLE mcp_tools(
  server {text} NOT NULL, tool {text} NOT NULL, definition {text} NOT NULL, PRIMARY KEY(server, tool)){without_rowid};
-- Counts the changes of both, so that nobody reads them again without need; its row is the lock of both.
INSERT INTO counters(name, value) VALUES('mcp', 0);
