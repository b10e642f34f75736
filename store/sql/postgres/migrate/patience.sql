-- For this transaction only: the time-outs of everyday statements do not fit a migration.
-- The schema's name is left where the DO block of schema.sql, which takes no parameters,
-- finds it.
SELECT set_config('lock_timeout', '60s', true),
       set_config('statement_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '60s', true),
       set_config('bellwether.schema', $1, true)
