-- one row per run and stage of the pipeline: its seconds, the longest first.
-- Ask it where the time went: data, base model, training, evaluation.
-- Example: countdown-train sql time_by_stage --run latest
with stages as (
    select
        runs.run_id,
        entries.key as stage,
        try_cast(entries.value as double) as seconds
    from runs
    cross join json_each(runs.timings_s) as entries
)

select
    run_id,
    stage,
    seconds,
    seconds / sum(seconds) over (partition by run_id) as share
from stages
order by run_id asc, seconds desc
