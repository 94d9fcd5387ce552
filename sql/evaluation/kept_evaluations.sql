-- one row per run, evaluation and model that is kept: number of problems, and accuracy with its interval.
-- Ask it which evaluations there are; all other questions take the one with `is_default`, the run's own.
-- Do not compare accuracies of two evaluations: they are of different problems or settings.
-- Example: countdown-train sql kept_evaluations --run latest
with answered as (
    select
        run_id,
        evaluation,
        is_default,
        model,
        any_value(step) as step,
        count(*) as problems,
        avg(accuracy) as accuracy,
        effective_problems(avg(accuracy), var_pop(accuracy), count(*), min(samples)) as effective
    from problem_accuracy
    group by run_id, evaluation, is_default, model
)

select
    run_id,
    evaluation,
    is_default,
    model,
    step,
    problems,
    accuracy,
    wilson(accuracy, effective)[1] as accuracy_low,
    wilson(accuracy, effective)[2] as accuracy_high
from answered
order by run_id asc, is_default desc, problems desc, evaluation asc, model != 'base', model asc
