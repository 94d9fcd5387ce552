-- one row per run, the newest first: status, steps, accuracy before and after, minutes, why it ended so,
-- what to do next, and your note.
-- Ask it which runs there are and which was worth its time; for a run in progress it shows the latest test.
-- The accuracies are of the evaluation; val_before and val_after of the tests in training, which ask fewer problems.
-- Example: countdown-train sql runs_overview --run latest
with tests as (
    select
        run_id,
        max(step) as last_step,
        arg_min(value, step) filter (where metric = 'val/accuracy') as first_accuracy,
        arg_max(value, step) filter (where metric = 'val/accuracy') as last_accuracy,
        max(logged_at) as logged_at
    from metrics
    group by run_id
)

select
    runs.run_id,
    runs.preset,
    runs.status,
    greatest(runs.steps, tests.last_step) as steps,
    runs.accuracy_before,
    runs.accuracy_after,
    tests.first_accuracy as val_before,
    tests.last_accuracy as val_after,
    -- no time is negative, even if the clock was set back meanwhile; an unknown one stays null
    if(
        coalesce(runs.finished_at, tests.logged_at) < runs.started_at,
        0,
        date_diff('second', runs.started_at, coalesce(runs.finished_at, tests.logged_at)) / 60
    ) as minutes,
    runs.started_at,
    runs.reason,
    runs.next_step,
    runs.note
from runs
left join tests on runs.run_id = tests.run_id
order by runs.started_at desc nulls last, runs.run_id asc
