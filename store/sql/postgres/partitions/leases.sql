-- One row at least, with the map; the columns of a lease are null where there is none.
SELECT ledger.partition_count, ledger.map_version,
       lease.partition, lease.map_version AS lease_map_version, lease.epoch, lease.zone_version,
       lease.term_id, lease.holder,
       CASE WHEN lease.expires_at > clock.now
            THEN (extract(epoch FROM lease.expires_at - clock.now) * 1000000)::bigint
       END AS remaining_us
FROM (SELECT clock_timestamp() AS now) AS clock
CROSS JOIN ledger
LEFT JOIN lease ON true
ORDER BY lease.partition
