-- ?1 now, ?2 limit. Longest due first, so that a flood of new work starves none. What is held waits for
-- its release.
SELECT id FROM execution
WHERE state IN ('pending', 'retrying') AND dispatched_at IS NULL AND NOT held
    AND available_at <= ?1
ORDER BY available_at, id LIMIT ?2
