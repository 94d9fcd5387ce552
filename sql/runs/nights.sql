-- one row per night, the newest first: model it started from, accuracy before and after with 95% intervals, promoted.
-- Accuracies of different `decoding` do not compare.
-- Ask it how the nights went: whether each was worth its time, and why its model was not promoted.
-- Example: countdown-train sql nights
with answered as (
    select
        run_id,
        model,
        any_value(step) as step,
        if(any_value(mode) = 'greedy', 'greedy', format('mean of {} samples', min(samples))) as decoding,
        avg(accuracy) as accuracy,
        effective_problems(avg(accuracy), var_pop(accuracy), count(*), min(samples)) as problems
    from problem_accuracy
    where is_default
    group by run_id, model
),

intervals as (
    select
        run_id,
        model = 'base' as is_base,
        any_value(decoding) as decoding,
        arg_max(wilson(accuracy, problems)[1], step) as low,
        arg_max(wilson(accuracy, problems)[2], step) as high
    from answered
    group by run_id, model = 'base'
),

stages as (
    select
        runs.run_id,
        sum(try_cast(entries.value as double)) / 60 as minutes
    from runs
    cross join json_each(runs.timings_s) as entries
    group by runs.run_id
)

select
    runs.night as due,
    runs.run_id,
    runs.status,
    runs.started_from,
    runs.accuracy_before,
    base.low as before_low,
    base.high as before_high,
    runs.accuracy_after,
    trained.low as after_low,
    trained.high as after_high,
    coalesce(starts_with(runs.champion, 'promoted'), false) as promoted,
    if(runs.status = 'finished', runs.champion, runs.reason) as why,
    stages.minutes,
    runs.attempts,
    coalesce(trained.decoding, base.decoding) as decoding
from runs
left join intervals as base on runs.run_id = base.run_id and base.is_base
left join intervals as trained on runs.run_id = trained.run_id and not trained.is_base
left join stages on runs.run_id = stages.run_id
where runs.night is not null
order by runs.night desc, runs.run_id asc
