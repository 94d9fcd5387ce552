-- one row per run and evaluated model: accuracy with its 95% (Wilson) interval, score, format.
-- Ask it whether training helped, and by more than chance; `strict` and `lenient` differ in where an answer counts.
-- Example: countdown-train sql evaluation_summary --run latest
with answered as (
    select
        run_id,
        model,
        any_value(evaluation) as evaluation,
        any_value(step) as step,
        any_value(mode) as mode,
        min(samples) as samples,
        count(*) as problems,
        avg(accuracy) as accuracy,
        effective_problems(avg(accuracy), var_pop(accuracy), count(*), min(samples)) as effective,
        avg(strict_accuracy) as strict_accuracy,
        avg(lenient_accuracy) as lenient_accuracy,
        avg(score) as mean_score,
        avg(format_share) as format_share,
        avg(response_tokens) as mean_response_tokens
    from problem_accuracy
    where is_default
    group by run_id, model
)

select
    run_id,
    model,
    step,
    problems,
    accuracy,
    wilson(accuracy, effective)[1] as accuracy_low,
    wilson(accuracy, effective)[2] as accuracy_high,
    strict_accuracy,
    lenient_accuracy,
    mean_score,
    format_share,
    mean_response_tokens,
    evaluation,
    if(mode = 'greedy', mode, format('mean of {} samples', samples)) as decoding
from answered
order by run_id asc, model != 'base', model asc
