-- one row per checkpoint that is on disk now.
select
    run_id,
    folder,
    is_best,
    is_latest,
    cast(record ->> 'step' as bigint) as step,
    cast(record ->> 'accuracy' as double) as accuracy,
    cast(record ->> 'total_bytes' as bigint) as total_bytes
from checkpoint_records
where json_valid(record)
