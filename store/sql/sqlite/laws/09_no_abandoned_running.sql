-- ?1 the ledger's now, ?2 examples to name.
-- Bound: a lease and two sweeps (1 s each); a deadline has 5 s of grace before it.
-- The lease is that of the row's session or of a live one, whichever is longer: a ticker, which is told
-- the longest of the fleet, takes nothing away for that long after its view broke. At least 9 s: the
-- ticker's own default, also where all sessions are shorter.
WITH fleet AS (
    SELECT max(9000, coalesce(max(expires_at - renewed_at), 0)) AS lease
    FROM session WHERE state = 'live'
),
running AS (
    SELECT e.id, e.deadline_at, coalesce(s.state, 'missing') AS session_state,
        max(coalesce(s.ended_at, e.claimed_at), e.claimed_at) AS left_at,
        ?1 - 2000 - max(fleet.lease, coalesce(s.expires_at - s.renewed_at, 0)) AS since
    FROM execution e CROSS JOIN fleet LEFT JOIN session s ON s.id = e.session_id
    WHERE e.state = 'running'
),
bad AS (
    SELECT 'execution ' || hex(id) || ': still running, ' || CASE
            WHEN session_state <> 'live' AND left_at < since
                THEN 'its session is ' || session_state || ' for ' || (?1 - left_at) || ' ms'
            ELSE 'its deadline passed ' || (?1 - deadline_at) || ' ms ago' END AS example
    FROM running
    WHERE session_state <> 'live' AND left_at < since OR deadline_at < since - 5000
)
SELECT (SELECT count(*) FROM running) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
