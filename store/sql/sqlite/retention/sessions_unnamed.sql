-- ?1 to ?4 as in sessions_near.sql, ?5 sessions (JSON array of hex ids). Those that none of the executions
-- names.
WITH near AS MATERIALIZED (
    SELECT id, session_id, probe_session_id FROM (
        SELECT id, session_id, probe_session_id FROM execution
        WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3)
    UNION ALL
    SELECT id, session_id, probe_session_id FROM (
        SELECT id, session_id, probe_session_id FROM execution
        WHERE id > max(?1, ?4) ORDER BY id LIMIT ?3)
    ORDER BY id LIMIT ?3)
SELECT unhex(value) AS id FROM json_each(?5)
EXCEPT SELECT session_id FROM near
EXCEPT SELECT probe_session_id FROM near
EXCEPT SELECT a.session_id FROM near CROSS JOIN attempt a ON a.execution_id = near.id
