SELECT id, partition_count, map_version, clock_timestamp() AS now FROM ledger
