-- ?1 now, ?2 partition. What is no number sorts above all that are; it is due at once (due.sql).
SELECT CAST(min(next_at) AS INTEGER) AS next_at FROM schedule
WHERE partition = ?2 AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
    AND next_at > ?1 AND next_at < ''
