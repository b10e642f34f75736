-- $1 sessions that ended, and that nothing names.
WITH target AS MATERIALIZED (
    SELECT id
    FROM session
    WHERE id = ANY ($1)
      AND ended_at IS NOT NULL
      AND (
          SELECT true FROM session_definition
          WHERE session_definition.session_id = session.id
          LIMIT 1
      ) IS NULL
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
DELETE FROM session USING target WHERE session.id = target.id
