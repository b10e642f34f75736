-- $1 execution ids, $2 claim_ids, $3 generations, $4 outcomes, $5 errors, $6 outputs, $7 whether
-- the handler has stopped: results that matched no row in commit.sql, answered in their order. A
-- repeat of an accepted one is accepted again, also when the row was claimed since: what a commit
-- put into history was retrying, and so was what has `went_on` since. An execution that is unknown is what a handler that has not
-- stopped makes of it; `late` if somebody else has made it that. What the fence refuses is kept for
-- audit.
WITH found AS MATERIALIZED (
    SELECT result.*, execution.state, execution.generation AS found_generation,
           coalesce(
               execution.claim_id = result.claim_id AND execution.generation = result.generation,
               false
           ) AS own,
           execution.left_by,
           execution.state <> 'unknown'
               AND execution.result_generation IS DISTINCT FROM result.generation AS went_on,
           attempt.left_by IS NOT NULL AS superseded,
           CASE WHEN attempt.left_by IS NOT NULL THEN attempt.left_late
                WHEN execution.state = 'unknown' THEN execution.left_by = 'sweep'
                ELSE execution.left_late END AS late
    FROM unnest(
        $1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::bytea[], $7::boolean[]
    ) WITH ORDINALITY AS result (
        execution_id, claim_id, generation, outcome, error, output, stopped, ord
    )
    LEFT JOIN execution ON execution.id = result.execution_id
    LEFT JOIN attempt
        ON attempt.execution_id = result.execution_id
        AND attempt.generation = result.generation
        AND attempt.claim_id = result.claim_id
        AND attempt.left_by = 'commit'
),
judged AS MATERIALIZED (
    SELECT found.*,
           superseded
               OR own AND state NOT IN ('running', 'unknown') AND left_by = 'commit'
               OR own AND state = 'unknown' AND NOT stopped AS repeated,
           -- Seen only if the row came to this claim after commit.sql had looked.
           own AND (state = 'running' OR state = 'unknown' AND stopped) AS raced
    FROM found
),
kept AS (
    INSERT INTO fenced_result (
        execution_id, claim_id, generation, outcome, output, error, found_state,
        found_generation, recorded_at
    )
    SELECT execution_id, claim_id, generation, outcome, output, error, state, found_generation,
           clock_timestamp()
    FROM judged
    WHERE repeated IS NOT TRUE AND raced IS NOT TRUE
    ORDER BY execution_id, claim_id
    ON CONFLICT (execution_id, claim_id) DO NOTHING
)
SELECT CASE WHEN superseded OR repeated AND went_on THEN 'retrying' ELSE state END AS state,
       found_generation,
       coalesce(repeated, false) AS repeated,
       coalesce(late, false) AS late,
       coalesce(raced, false) AS raced
FROM judged
ORDER BY ord
