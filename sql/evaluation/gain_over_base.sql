-- one row per run and trained model: accuracy gained over the base model, with a 95% interval.
-- Ask it whether the gain is more than chance; problems are paired, which is sharper than two intervals.
-- The interval is Tango's (1998). `p_value` is of McNemar's exact test, slightly more cautious: below 0.05 the
-- model is better, or worse. Of means of several samples it is the sign-flip test's.
-- Example: countdown-train sql gain_over_base --run latest
with answered as (
    select *
    from problem_accuracy
    where is_default
),

paired as (
    select
        trained.run_id,
        trained.model,
        count(*) as problems,
        count(*) filter (where trained.accuracy > base.accuracy) as won,
        count(*) filter (where base.accuracy > trained.accuracy) as lost,
        min(trained.samples) as samples,
        sum(trained.accuracy * (1 - base.accuracy)) as pairs_won,
        sum(base.accuracy * (1 - trained.accuracy)) as pairs_lost,
        var_pop(trained.accuracy - base.accuracy) as variance,
        list((trained.accuracy - base.accuracy) * trained.samples) as differences
    from answered as trained
    inner join answered as base
        on trained.run_id = base.run_id and trained.prompt_index = base.prompt_index and base.model = 'base'
    where trained.model != 'base'
    group by trained.run_id, trained.model
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
    problems,
    won,
    lost,
    (pairs_won - pairs_lost) / problems as gain,
    gain_interval(weight * pairs_won, weight * pairs_lost, weight * problems)[1] as gain_low,
    gain_interval(weight * pairs_won, weight * pairs_lost, weight * problems)[2] as gain_high,
    if(samples = 1, mcnemar_p(won, lost), sign_flip_p(differences)) as p_value
from weighed
order by run_id asc, model asc
