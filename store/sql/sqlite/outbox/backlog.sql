SELECT count(*) AS backlog, min(created_at) AS oldest FROM outbox
