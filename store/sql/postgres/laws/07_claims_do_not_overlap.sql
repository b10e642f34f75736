-- Each claim of an execution begins when all earlier ones have ended.
WITH claims AS (
    SELECT execution_id, generation, claimed_at, ended_at FROM attempt
    UNION ALL
    SELECT id, generation, claimed_at, coalesce(attempt_ended_at, 'infinity')
    FROM execution
    WHERE claimed_at IS NOT NULL
),
ordered AS (
    SELECT claims.*,
           max(ended_at) OVER (
               PARTITION BY execution_id ORDER BY generation
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS earlier_until
    FROM claims
),
broken AS (
    SELECT format(
               'execution %s: generation %s was claimed at %s, an earlier claim ended at %s',
               execution_id, generation, claimed_at, coalesce(earlier_until::text, 'no time yet')
           ) AS example
    FROM ordered
    WHERE claimed_at < earlier_until
)
SELECT (SELECT count(*) FROM claims) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
