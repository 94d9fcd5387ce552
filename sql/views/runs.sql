-- one row per run: its run.json. A run that only just began has nulls;
-- one whose run.json is damaged is `unreadable`.
select
    run_id,
    folder,
    try_cast(record ->> 'steps' as bigint) as steps,
    try_cast(record ->> 'accuracy_before' as double) as accuracy_before,
    try_cast(record ->> 'accuracy_after' as double) as accuracy_after,
    try_cast(record ->> 'started_at' as timestamptz) as started_at,
    try_cast(record ->> 'finished_at' as timestamptz) as finished_at,
    record ->> 'preset' as preset,
    record ->> 'status' as status,
    record ->> 'reason' as reason,
    record ->> 'next_step' as next_step,
    record ->> 'note' as note,
    record ->> 'champion' as champion,
    try_cast(record ->> 'night' as timestamptz) as night,
    record ->> 'started_from' as started_from,
    record -> 'timings_s' as timings_s,
    json_array_length(record, '$.attempts') as attempts,
    coalesce(from_json(record -> 'attempts', '["json"]'), []) as attempts_list
from run_records
