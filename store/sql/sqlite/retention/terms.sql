-- ?1 now less the retention, ?2 the first id that is too young, ?3 limit, ?4 most fires to look at; why:
-- see postgres/retention/terms.sql.
WITH ended AS MATERIALIZED (
    SELECT t.rowid AS place, t.partition, t.epoch
    FROM lease CROSS JOIN term t ON t.partition = lease.partition AND t.epoch < lease.epoch
    WHERE t.ended_at < ?1
    ORDER BY t.partition, t.epoch LIMIT ?3),
near AS MATERIALIZED (
    SELECT partition, epoch FROM fire
    WHERE id < ?2 AND EXISTS (SELECT 1 FROM ended)
    ORDER BY id LIMIT ?4)
DELETE FROM term
WHERE rowid IN (
    SELECT ended.place FROM ended
    WHERE (SELECT count(*) FROM near) < ?4
        AND (ended.partition, ended.epoch) NOT IN (
            SELECT near.partition, near.epoch FROM near WHERE near.epoch IS NOT NULL))
