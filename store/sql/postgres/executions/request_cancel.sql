-- $1 execution ids: the state each had under its lock, in their order; null = no such execution.
--
-- The request is stamped after the lock: law 14 compares it with the claims. What waits ends here,
-- as the sweep would end it; its outbox row is dropped by the relay that meets it. What is unknown
-- ends here too, taken from its claim as by a sweep: a later result of it is fenced and kept.
WITH target AS MATERIALIZED (
    SELECT execution.id, execution.state, execution.session_id
    FROM (SELECT DISTINCT unnest($1::uuid[]) AS id) AS ask
    JOIN execution ON execution.id = ask.id
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution
),
locked AS MATERIALIZED (
    SELECT target.*, target.state IN ('pending', 'retrying', 'unknown') AS ends, clock_timestamp() AS now
    FROM target
),
requested AS (
    UPDATE execution
    SET cancel_requested_at = coalesce(execution.cancel_requested_at, locked.now),
        state               = CASE WHEN locked.ends THEN 'cancelled' ELSE execution.state END,
        reason              = CASE WHEN locked.ends THEN 'cancelled' ELSE execution.reason END,
        left_by             = CASE WHEN locked.state = 'unknown' THEN 'sweep'
                                   ELSE execution.left_by END,
        ended_at            = CASE WHEN locked.ends THEN locked.now END
    FROM locked
    WHERE execution.id = locked.id
      AND (locked.ends OR locked.state = 'running')
)
SELECT locked.state,
       coalesce(
           locked.state = 'running' AND session.capabilities::jsonb ? 'cancel', false
       ) AS told
FROM unnest($1::uuid[]) WITH ORDINALITY AS ask (id, ord)
LEFT JOIN locked ON locked.id = ask.id
LEFT JOIN session ON session.id = locked.session_id AND session.state = 'live'
ORDER BY ask.ord
