-- $1 execution, $2 the id that its retry has or would get: what stands there.
SELECT old.state, old.shard_index,
       own.id IS NOT NULL AS taken,
       coalesce(own.retry_of = $1, false) AS repeated,
       other.id AS other_id, other.state AS other_state
FROM (VALUES (1)) AS one
LEFT JOIN execution AS old ON old.id = $1
LEFT JOIN execution AS own ON own.id = $2
LEFT JOIN execution AS other
    ON other.operation_id = old.operation_id
    AND other.retry_of IS NOT NULL
    AND other.state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')
