-- A new connection, before anything was prepared on it. Whether it has the settings that were asked
-- for at its start, and whether its server knows statements that other connections prepared: a
-- pooler may drop the ones and lend the others.
SELECT trim(BOTH '"' FROM current_setting('search_path')) AS search_path,
       EXISTS (SELECT FROM pg_prepared_statements WHERE name LIKE 'sqlx\_s\_%') AS lent
