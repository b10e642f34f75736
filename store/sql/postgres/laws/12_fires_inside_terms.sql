-- A term ends with the stamp that the next one starts with. Manual triggers name no term.
WITH broken AS (
    SELECT format(
               'fire %s was planned at %s, its term %s/%s ran from %s to %s',
               fire.id, fire.planned_at, fire.partition, fire.epoch,
               coalesce(term.started_at::text, 'no such term'), coalesce(term.ended_at::text, 'now')
           ) AS example
    FROM fire
    LEFT JOIN term
        ON term.partition = fire.partition AND term.epoch = fire.epoch
        AND term.term_id = fire.term_id
    WHERE fire.epoch IS NOT NULL
      AND (
          term.term_id IS NULL
          OR fire.planned_at < term.started_at
          OR fire.planned_at > coalesce(term.ended_at, 'infinity')
      )
    UNION ALL
    SELECT format(
               'partition %s: epoch %s started at %s, before epoch %s ended (%s)',
               later.partition, later.epoch, later.started_at, earlier.epoch,
               coalesce(earlier.ended_at::text, 'never')
           )
    FROM (
        SELECT partition, epoch, started_at,
               lag(epoch) OVER (PARTITION BY partition ORDER BY epoch) AS earlier_epoch
        FROM term
    ) AS later
    JOIN term AS earlier
        ON earlier.partition = later.partition AND earlier.epoch = later.earlier_epoch
    WHERE coalesce(earlier.ended_at, 'infinity') > later.started_at
)
SELECT (SELECT count(*) FROM fire WHERE epoch IS NOT NULL) + (SELECT count(*) FROM term)
           AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
