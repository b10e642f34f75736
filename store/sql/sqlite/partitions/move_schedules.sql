-- ?1 partitions
-- The number that picks the partition is the one of a registration: the last four bytes of the id.
-- An id that a hand has spoilt has none of them: its row goes to partition 0, where it gets a fault.
UPDATE schedule
SET partition = iif(length(id) = 16, ('0x' || hex(substr(id, 13))) ->> '$', 0) % ?1
WHERE partition <> iif(length(id) = 16, ('0x' || hex(substr(id, 13))) ->> '$', 0) % ?1
