-- One-shots and retries too: such a fire lives in its execution, a retry as one shard of its total.
WITH by_state AS (
    SELECT fire_id, state, count(*) AS executions,
           min(shard_total) AS least, max(shard_total) AS most,
           bool_and(retry_of IS NOT NULL) AS retried
    FROM execution
    GROUP BY fire_id, state
),
summed AS (
    SELECT fire_id, sum(executions)::bigint AS executions, min(least) AS least,
           max(most) AS most, bool_and(retried) AS retried,
           string_agg(state || ' ' || executions, ', ' ORDER BY state) AS states
    FROM by_state
    GROUP BY fire_id
),
counted AS (
    SELECT coalesce(fire.id, summed.fire_id) AS fire_id,
           coalesce(summed.executions, 0) AS executions,
           coalesce(fire.shard_total, CASE WHEN summed.retried THEN 1 ELSE summed.most END)
               AS shard_total,
           coalesce(summed.states, 'none') AS states,
           summed.fire_id IS NULL
               OR (
                   summed.least = coalesce(fire.shard_total, summed.least)
                   AND summed.most = coalesce(fire.shard_total, summed.least)
               ) AS agreed
    FROM fire FULL JOIN summed ON summed.fire_id = fire.id
),
broken AS (
    SELECT format(
               'fire %s has %s executions of %s (%s)', fire_id, executions, shard_total, states
           ) AS example
    FROM counted
    WHERE executions <> shard_total OR NOT agreed
)
SELECT (SELECT count(*) FROM counted) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
