"""The state machine before it was a table, for one comparison."""
