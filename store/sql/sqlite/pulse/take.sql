-- ?1 now, ?2 the count that stands for "that many or more". Every count ends there, every age is the
-- first entry of an index: the price does not grow with the backlog. The terms of the partial
-- indexes stand here word for word.
WITH letter AS (
    SELECT execution_id FROM dead_letter WHERE resolved_at IS NULL AND recorded_at >= 0 LIMIT ?2
)
SELECT (SELECT count(*) FROM (
            -- Nobody has looked at it since it was added or its timing edited.
            SELECT 1 FROM lease CROSS JOIN schedule
            WHERE schedule.partition = lease.partition
                AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at IS NULL
            UNION ALL
            SELECT 1 FROM lease CROSS JOIN schedule
            WHERE schedule.partition = lease.partition
                AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at <= ?1
            LIMIT ?2)) AS due,
       (SELECT min(first) FROM (
            SELECT (
                SELECT next_at FROM schedule
                WHERE schedule.partition = lease.partition
                    AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
                    AND next_at <= ?1
                ORDER BY next_at LIMIT 1) AS first
            FROM lease)) AS due_since,
       (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE id >= 0 LIMIT ?2)) AS outbox,
       (SELECT created_at FROM outbox WHERE id >= 0 ORDER BY id LIMIT 1) AS outbox_since,
       (SELECT count(*) FROM letter WHERE execution_id IS NULL) AS dead_messages,
       (SELECT count(*) FROM letter WHERE execution_id IS NOT NULL) AS dead_executions,
       (SELECT count(*) FROM (
            SELECT 1 FROM execution
            WHERE state = 'unknown' AND escalated_at IS NULL AND attempt_ended_at >= 0 LIMIT ?2))
       + (SELECT count(*) FROM (
            SELECT 1 FROM execution
            WHERE state = 'unknown' AND escalated_at IS NOT NULL AND queue >= '' LIMIT ?2))
           AS unknown
