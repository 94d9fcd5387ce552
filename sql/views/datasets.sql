-- one row per data set and split below storage.root, whichever run made it.
select
    name,
    split,
    folder,
    num_rows,
    total_bytes,
    content_hash,
    try_cast(seed as bigint) as seed,
    made_by
from dataset_records
