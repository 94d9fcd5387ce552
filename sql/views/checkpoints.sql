-- one row per checkpoint that is on disk now.
select
    run_id,
    folder,
    is_best,
    is_latest,
    try_cast(record ->> 'step' as bigint) as step,
    try_cast(record ->> 'accuracy' as double) as accuracy,
    try_cast(record ->> 'total_bytes' as bigint) as total_bytes
from checkpoint_records
where json_valid(record) and try_cast(record ->> 'step' as bigint) is not null
