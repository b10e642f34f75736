SELECT id, partition_count, map_version FROM ledger
