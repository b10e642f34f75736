-- ?1 an instant of that age and two days, ?2 the first id of a day later, ?3 limit, ?4 most sessions and
-- executions to look at; why: see postgres/retention/sessions.sql.
WITH ended AS MATERIALIZED (
    SELECT id FROM session WHERE ended_at IS NOT NULL AND ended_at < ?1
    ORDER BY ended_at LIMIT ?4),
near AS MATERIALIZED (
    SELECT id, session_id, probe_session_id FROM execution
    WHERE id < ?2 AND EXISTS (SELECT 1 FROM ended)
    ORDER BY id LIMIT ?4),
named AS MATERIALIZED (
    SELECT session_id AS id FROM near WHERE session_id IS NOT NULL
    UNION SELECT probe_session_id FROM near WHERE probe_session_id IS NOT NULL
    UNION SELECT a.session_id FROM near CROSS JOIN attempt a ON a.execution_id = near.id)
DELETE FROM session
WHERE id IN (
    SELECT ended.id FROM ended
    WHERE ended.id NOT IN (SELECT named.id FROM named)
        AND (SELECT count(*) FROM near) < ?4
        AND NOT EXISTS (SELECT 1 FROM session_definition r WHERE r.session_id = ended.id)
    LIMIT ?3)
