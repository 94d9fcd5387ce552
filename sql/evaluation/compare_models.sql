-- one row per two trained models of any runs that answered the same problems: how often only one was right.
-- Ask it which run to keep. Problems are the same if their index, prompt and ground truth are;
-- `p_value` is of McNemar's exact test: below 0.05 the model is better, or worse, than the other.
-- Means of samples (then it is the sign-flip test's) are compared only within the same evaluation.
-- Example: countdown-train sql compare_models --run latest
with answered as (
    select *
    from problem_accuracy
    where is_default and model != 'base' and ground_truth is not null
),

paired as (
    select
        one.run_id,
        one.model,
        other.run_id as other_run_id,
        other.model as other_model,
        count(*) as problems,
        count(*) filter (where one.accuracy > other.accuracy) as won,
        count(*) filter (where other.accuracy > one.accuracy) as lost,
        min(one.samples) as samples,
        sum(one.accuracy * (1 - other.accuracy)) as pairs_won,
        sum(other.accuracy * (1 - one.accuracy)) as pairs_lost,
        var_pop(one.accuracy - other.accuracy) as variance,
        list((one.accuracy - other.accuracy) * one.samples) as differences
    from answered as one
    inner join answered as other
        on
            one.prompt_index = other.prompt_index
            and one.prompt = other.prompt
            and one.ground_truth = other.ground_truth
            and one.mode = other.mode
            and (one.mode = 'greedy' or one.evaluation = other.evaluation)
            and (one.run_id, one.model) < (other.run_id, other.model)
    group by one.run_id, one.model, other.run_id, other.model
),

weighed as (
    select
        *,
        effective_pairs(pairs_won, pairs_lost, variance, problems, samples) as weight
    from paired
)

select
    run_id,
    model,
    other_run_id,
    other_model,
    problems,
    won,
    lost,
    (pairs_won - pairs_lost) / problems as gain,
    gain_interval(weight * pairs_won, weight * pairs_lost, weight * problems)[1] as gain_low,
    gain_interval(weight * pairs_won, weight * pairs_lost, weight * problems)[2] as gain_high,
    if(samples = 1, mcnemar_p(won, lost), sign_flip_p(differences)) as p_value
from weighed
order by run_id asc, model asc, other_run_id asc, other_model asc
