-- one row per data set and split below storage.root: rows, bytes, what made it, and its fingerprint.
-- Ask it whether two runs saw the same problems.
-- Example: countdown-train sql data_sets
select
    name,
    split,
    num_rows,
    total_bytes,
    seed,
    content_hash,
    folder
from datasets
order by name asc, split asc
