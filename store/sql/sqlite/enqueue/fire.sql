-- ?1 fire
SELECT shard_total FROM fire WHERE id = ?1
