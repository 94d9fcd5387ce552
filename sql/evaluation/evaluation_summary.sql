-- one row per run and evaluated model: greedy accuracy with its 95% (Wilson) interval, score, format.
-- Ask it whether training helped, and by more than chance; `strict` and `lenient` differ in where an answer counts.
-- Example: countdown-train sql evaluation_summary --run latest
with greedy as (
    select
        run_id,
        model,
        any_value(evaluation) as evaluation,
        any_value(step) as step,
        count(*) as problems,
        count(*) filter (where verdict = 'correct') / count(*) as accuracy,
        avg(cast(verdict_strict = 'correct' as integer)) as strict_accuracy,
        avg(cast(verdict_lenient = 'correct' as integer)) as lenient_accuracy,
        avg(score) as mean_score,
        count(*) filter (where verdict not in ('no_answer', 'bad_syntax', 'too_long')) / count(*) as format_share,
        avg(response_tokens) as mean_response_tokens
    from evaluations
    where mode = 'greedy'
    group by run_id, model
)

select
    run_id,
    model,
    step,
    problems,
    accuracy,
    wilson(accuracy, problems)[1] as accuracy_low,
    wilson(accuracy, problems)[2] as accuracy_high,
    strict_accuracy,
    lenient_accuracy,
    mean_score,
    format_share,
    mean_response_tokens,
    evaluation
from greedy
order by run_id asc, model != 'base', model asc
