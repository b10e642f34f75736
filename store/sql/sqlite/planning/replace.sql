-- ?1 schedule, ?2 now
-- The newest 1,000 executions are as many as a fire can have; what is behind them, the next instant asks.
-- A sweep hands the request on to the executions. An operator's retry has no fire's row: it is
-- waited for.
UPDATE fire SET cancel_requested_at = ?2
WHERE cancel_requested_at IS NULL AND id IN (
    SELECT fire_id FROM execution
    WHERE schedule_id = ?1 AND state IN ('pending', 'running', 'retrying', 'unknown') AND NOT held
    ORDER BY id DESC LIMIT 1000)
