-- What law 2 is judged by (in audit.rs): each schedule with its fires and ranges, one snapshot.
SELECT schedule.id, schedule.name, schedule.kind, schedule.expr, schedule.zone,
       schedule.period_ms, schedule.anchor, schedule.at, schedule.created_at,
       schedule.history_from, schedule.cursor,
       (
           SELECT json_agg(json_build_array(valid_from, json_build_object(
                      'kind', kind, 'expr', expr, 'zone', zone, 'period_ms', period_ms,
                      'anchor', anchor, 'at', at
                  )) ORDER BY valid_from, version)::text
           FROM schedule_timing WHERE schedule_timing.schedule_id = schedule.id
       ) AS timings,
       ARRAY(
           SELECT fire.scheduled_at FROM fire
           WHERE fire.schedule_id = schedule.id AND fire.trigger IN ('cron', 'every', 'at')
           ORDER BY fire.scheduled_at
       ) AS fires,
       ARRAY(
           SELECT from_at FROM non_fire WHERE schedule_id = schedule.id ORDER BY from_at
       ) AS range_from,
       ARRAY(
           SELECT until_at FROM non_fire WHERE schedule_id = schedule.id ORDER BY from_at
       ) AS range_until,
       ARRAY(
           SELECT count FROM non_fire WHERE schedule_id = schedule.id ORDER BY from_at
       ) AS range_count
FROM schedule
ORDER BY schedule.id
