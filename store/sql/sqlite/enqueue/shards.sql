-- ?1 schedule
SELECT shard_total FROM schedule WHERE id = ?1
