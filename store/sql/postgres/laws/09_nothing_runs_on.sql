-- Bound: a lease and two sweeps (1 s each); a deadline has 5 s of grace before it.
-- The lease is that of the row's session or of a live one, whichever is longer: a ticker, which is told
-- the longest of the fleet, takes nothing away for that long after its view broke. At least 9 s: the
-- ticker's own default, also where all sessions are shorter.
WITH fleet AS (
    SELECT greatest(interval '9 seconds', max(expires_at - renewed_at)) AS lease
    FROM session
    WHERE state = 'live'
),
running AS (
    SELECT execution.id, execution.session_id, execution.deadline_at,
           coalesce(session.state, 'missing') AS session_state,
           greatest(session.ended_at, execution.claimed_at) AS left_at,
           statement_timestamp() - interval '2 seconds'
               - greatest(fleet.lease, session.expires_at - session.renewed_at) AS since
    FROM execution
    CROSS JOIN fleet
    LEFT JOIN session ON session.id = execution.session_id
    WHERE execution.state = 'running'
),
broken AS (
    SELECT format(
               'execution %s runs: its session %s is %s since %s, its deadline is %s',
               id, session_id, session_state, left_at, deadline_at
           ) AS example
    FROM running
    WHERE (session_state <> 'live' AND left_at < since)
       OR deadline_at < since - interval '5 seconds'
)
SELECT (SELECT count(*) FROM running) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
