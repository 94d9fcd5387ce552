-- one row per two trained models of any runs that answered the same problems: how often only one was right.
-- Ask it which run to keep. Problems are the same if their index, prompt and ground truth are;
-- `p_value` is of McNemar's exact test: below 0.05 the model is better, or worse, than the other.
-- Example: countdown-train sql compare_models --run latest
with greedy as (
    select
        run_id,
        model,
        prompt_index,
        prompt,
        ground_truth,
        verdict = 'correct' as solved
    from evaluations
    where mode = 'greedy' and model != 'base' and ground_truth is not null
),

paired as (
    select
        one.run_id,
        one.model,
        other.run_id as other_run_id,
        other.model as other_model,
        count(*) as problems,
        count(*) filter (where one.solved and not other.solved) as won,
        count(*) filter (where other.solved and not one.solved) as lost
    from greedy as one
    inner join greedy as other
        on
            one.prompt_index = other.prompt_index
            and one.prompt = other.prompt
            and one.ground_truth = other.ground_truth
            and (one.run_id, one.model) < (other.run_id, other.model)
    group by one.run_id, one.model, other.run_id, other.model
)

select
    run_id,
    model,
    other_run_id,
    other_model,
    problems,
    won,
    lost,
    (won - lost) / problems as gain,
    gain_interval(won, lost, problems)[1] as gain_low,
    gain_interval(won, lost, problems)[2] as gain_high,
    mcnemar_p(won, lost) as p_value
from paired
order by run_id asc, model asc, other_run_id asc, other_model asc
