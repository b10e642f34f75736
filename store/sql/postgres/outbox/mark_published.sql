-- $1 ids. A delete that is lost in a crash costs a repeat; see claim.sql.
DELETE FROM outbox
WHERE id = ANY ($1)
  AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
