-- $1 partitions
-- The number that picks the partition is the one of a registration: the last 32 bits of the id.
UPDATE schedule
SET partition = (('x' || right(id::text, 8))::bit(32)::bigint % $1::integer)::integer
WHERE partition <> ('x' || right(id::text, 8))::bit(32)::bigint % $1::integer
