-- How PostgreSQL keeps the tables that are written most. Takes no lock that a reader or a writer waits for.
-- Rows that every step updates: room on their page, so that a new version stays there and touches no index; and their
-- dead versions are collected after a fiftieth of the table, not after a fifth.
{postgres} ALTER TABLE sessions SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
{postgres} ALTER TABLE tasks SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
{postgres} ALTER TABLE runs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
{postgres} ALTER TABLE inbox SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
{postgres} ALTER TABLE outbox SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
{postgres} ALTER TABLE usage SET (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
-- Few rows, updated all the time: a page of them is mostly free, and is cleaned whatever share of it is dead.
{postgres} ALTER TABLE workers SET (fillfactor = 30, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
{postgres} ALTER TABLE counters SET (fillfactor = 30, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
{postgres} ALTER TABLE purses SET (fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0.05);
{postgres} ALTER TABLE doing SET (fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0.05);
{postgres} ALTER TABLE provider_limits SET (fillfactor = 30, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
-- Rows that are only added, and deleted by the thousand much later.
{postgres} ALTER TABLE messages SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
{postgres} ALTER TABLE calls SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
{postgres} ALTER TABLE events SET (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
