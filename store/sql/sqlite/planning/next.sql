-- ?1 now
SELECT min(next_at) AS next_at FROM schedule
WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at > ?1
