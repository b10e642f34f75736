-- 11 s = one lease plus two sweeps; 5 s of grace.
WITH broken AS (
    SELECT format(
               'execution %s runs: its session %s is %s since %s, its deadline is %s',
               execution.id, execution.session_id, coalesce(session.state, 'missing'),
               coalesce(session.ended_at, execution.claimed_at), execution.deadline_at
           ) AS example
    FROM execution
    LEFT JOIN session ON session.id = execution.session_id
    WHERE execution.state = 'running'
      AND (
          (
              session.state IS DISTINCT FROM 'live'
              AND greatest(session.ended_at, execution.claimed_at)
                  < statement_timestamp() - interval '16 seconds'
          )
          OR execution.deadline_at < statement_timestamp() - interval '16 seconds'
      )
)
SELECT (SELECT count(*) FROM execution WHERE state = 'running') AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
