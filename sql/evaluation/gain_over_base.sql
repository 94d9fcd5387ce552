-- one row per run and trained model: greedy accuracy gained over the base model, with a 95% interval.
-- Ask it whether the gain is more than chance; problems are paired, which is sharper than two intervals.
-- The interval is Tango's (1998). `p_value` is of McNemar's exact test, slightly more cautious: below 0.05 the
-- model is better, or worse.
-- Example: countdown-train sql gain_over_base --run latest
with greedy as (
    select
        run_id,
        model,
        prompt_index,
        verdict = 'correct' as solved
    from evaluations
    where mode = 'greedy'
),

paired as (
    select
        trained.run_id,
        trained.model,
        count(*) as problems,
        count(*) filter (where trained.solved and not base.solved) as won,
        count(*) filter (where base.solved and not trained.solved) as lost
    from greedy as trained
    inner join greedy as base
        on trained.run_id = base.run_id and trained.prompt_index = base.prompt_index and base.model = 'base'
    where trained.model != 'base'
    group by trained.run_id, trained.model
)

select
    run_id,
    model,
    problems,
    won,
    lost,
    (won - lost) / problems as gain,
    gain_interval(won, lost, problems)[1] as gain_low,
    gain_interval(won, lost, problems)[2] as gain_high,
    mcnemar_p(won, lost) as p_value
from paired
order by run_id asc, model asc
