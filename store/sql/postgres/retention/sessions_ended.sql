-- $1 retention (µs), $2 limit, $3 when the session ended and $4 which after which to look. Sessions of
-- that age and two days: see sessions_named.sql.
SELECT id, ended_at
FROM session
WHERE ended_at IS NOT NULL
  AND ended_at < (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond' - interval '2 days'
  AND ended_at >= $3
  AND (ended_at, id) > ($3, $4)
ORDER BY ended_at, id
LIMIT $2
