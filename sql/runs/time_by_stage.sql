-- one row per run and stage of the pipeline: its seconds, the longest first; below, with an attempt,
-- one row per attempt and phase of its start, from the command (a retry's: from the end of the attempt
-- before) to the first response. Stages make up the run. Phases of a start overlap: engines and learner
-- load side by side; the share is of `start-up`, all of it.
-- Ask it where the time went: data, base model, training, evaluation, and what a start waits for.
-- Example: countdown-train sql time_by_stage --run latest
with stages as (
    select
        runs.run_id,
        null as attempt,
        entries.key as stage,
        try_cast(entries.value as double) as seconds
    from runs
    cross join json_each(runs.timings_s) as entries
),

attempts as (
    select
        run_id,
        unnest(attempts_list) as attempt,
        generate_subscripts(attempts_list, 1) as number
    from runs
),

starts as (
    select
        attempts.run_id,
        attempts.number as attempt,
        if(entries.key = 'all', 'start-up', 'start-up: ' || entries.key) as stage,
        try_cast(entries.value as double) as seconds
    from attempts
    cross join json_each(attempts.attempt -> 'startup_s') as entries
)

select
    run_id,
    attempt,
    stage,
    seconds,
    seconds / sum(seconds) over (partition by run_id) as share
from stages
union all
select
    run_id,
    attempt,
    stage,
    seconds,
    seconds / max(seconds) over (partition by run_id, attempt) as share
from starts
order by run_id asc, attempt asc nulls first, seconds desc
