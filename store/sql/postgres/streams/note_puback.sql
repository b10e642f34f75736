-- $1 name, $2 created, $3 sequence. Lost in a crash it is noted again with the next PubAck.
UPDATE stream SET last_seq = $3
WHERE name = $1 AND created = $2 AND last_seq < $3
  AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
