WITH broken AS (
    SELECT format('outbox row %s of execution %s waits since %s', id, execution_id, created_at) AS example
    FROM outbox
    WHERE created_at < statement_timestamp() - interval '60 seconds'
)
SELECT (SELECT count(*) FROM outbox) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
