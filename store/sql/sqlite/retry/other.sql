-- ?1 operation: its retry that has not ended or has succeeded; execution_retry_once allows one.
SELECT id, state FROM execution
WHERE operation_id = ?1 AND retry_of IS NOT NULL
    AND state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')
