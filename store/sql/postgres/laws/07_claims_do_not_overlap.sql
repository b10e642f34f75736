-- Each claim of an execution begins when all earlier ones have ended, and ends after that.
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
               'execution %s: generation %s was claimed at %s until %s, an earlier claim until %s',
               execution_id, generation, claimed_at, ended_at,
               coalesce(earlier_until::text, 'never')
           ) AS example
    FROM ordered
    WHERE claimed_at < earlier_until OR ended_at < claimed_at
)
SELECT (SELECT count(*) FROM claims) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
