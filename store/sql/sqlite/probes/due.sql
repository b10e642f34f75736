-- ?1 now, ?2 now less the time after the loss, ?3 limit. Longest due first.
SELECT id FROM execution
WHERE state = 'unknown' AND escalated_at IS NULL AND dispatched_at IS NULL AND available_at <= ?1
    AND attempt_ended_at <= ?2
ORDER BY available_at, id LIMIT ?3
