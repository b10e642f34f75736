-- $1 execution
SELECT shard_index FROM execution WHERE id = $1
