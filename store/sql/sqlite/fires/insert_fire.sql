-- ?1 fire, ?2 trigger (null = the kind), ?3 scheduled_at, ?4 nominal_local, ?5 fold,
-- ?6 traceparent, ?7 tracestate, ?8 epoch, ?9 term_id, ?10 now, ?11 schedule,
-- ?12 the fire it is held behind
INSERT INTO fire (id, schedule_id, schedule_version, trigger, scheduled_at, nominal_local, fold,
    shard_total, payload, content_type, traceparent, tracestate, partition, epoch, term_id,
    planned_at, held_behind)
SELECT ?1, id, version, coalesce(?2, kind), ?3, ?4, ?5, shard_total, payload, content_type,
    ?6, ?7, partition, ?8, ?9, ?10, ?12
FROM schedule WHERE id = ?11
ON CONFLICT DO NOTHING
