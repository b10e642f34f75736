SELECT count(*) AS rows,
       coalesce(extract(epoch FROM clock_timestamp() - min(created_at)) * 1000000, 0)::bigint
           AS oldest_us
FROM outbox
