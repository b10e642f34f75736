-- ?1 now
UPDATE term SET ended_at = max(?1, started_at)
WHERE ended_at IS NULL
    AND (partition, epoch) IN (SELECT partition, epoch FROM lease)
