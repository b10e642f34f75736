-- ?1 execution
SELECT state, shard_index, operation_id FROM execution WHERE id = ?1
