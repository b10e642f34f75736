-- ?1 an instant of that age and two days, ?2 limit, ?3 when the session ended and ?4 which after which to
-- look; why: see postgres/retention/sessions_named.sql.
SELECT id, ended_at FROM session
WHERE ended_at IS NOT NULL AND ended_at < ?1 AND ended_at >= ?3 AND (ended_at, id) > (?3, ?4)
ORDER BY ended_at, id LIMIT ?2
