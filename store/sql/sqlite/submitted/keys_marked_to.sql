-- Keys of what ended before this may be forgotten.
SELECT keys_marked_to FROM ledger
