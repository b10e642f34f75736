-- $1 ids. Ends a lease before its time; a loss costs the rest of it.
UPDATE outbox SET leased_until = NULL
WHERE id = ANY ($1)
  AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
