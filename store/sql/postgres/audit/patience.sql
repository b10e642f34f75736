-- For this transaction only: a law looks at whole tables.
SELECT set_config('statement_timeout', '300s', true)
