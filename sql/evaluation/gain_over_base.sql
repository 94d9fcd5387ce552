-- one row per run and trained model: greedy accuracy gained over the base model, with a 95% interval.
-- Ask it whether the gain is more than chance; problems are paired, which is sharper than two intervals.
-- `p_value` is of McNemar's exact test: below 0.05 the model is better, or worse. Exactly then the interval
-- (of the problems that only one of the two models solves) excludes 0.
-- Example: countdown-train sql gain_over_base --run latest
with recursive greedy as (
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
),

tested as (
    select
        *,
        least(
            1,
            2 * list_sum(
                list_transform(
                    range(least(won, lost) + 1),
                    lambda i: exp(
                        lgamma(won + lost + 1) - lgamma(i + 1) - lgamma(won + lost - i + 1) - (won + lost) * ln(2)
                    )
                )
            )
        ) as p_value
    from paired
),

-- the lowest share of wins at which so many wins are still likely, bit by bit (Clopper and Pearson 1934)
digits as (
    select
        run_id,
        model,
        unnest([won, lost]) as wins,
        won + lost as differing,
        0.5::double as digit,
        0::double as low
    from tested
    union
    select
        run_id,
        model,
        wins,
        differing,
        digit / 2 as digit,
        low + digit * (
            list_sum(
                list_transform(
                    range(wins, differing + 1),
                    lambda i: exp(
                        lgamma(differing + 1) - lgamma(i + 1) - lgamma(differing - i + 1)
                        + i * ln(low + digit) + (differing - i) * ln(1 - low - digit)
                    )
                )
            ) <= 0.025
        )::int as low
    from digits
    where digit > 1e-9
),

lowest as (
    select
        run_id,
        model,
        wins,
        low
    from digits
    where digit <= 1e-9
)

select
    tested.run_id,
    tested.model,
    tested.problems,
    tested.won,
    tested.lost,
    (tested.won - tested.lost) / tested.problems as gain,
    (tested.won + tested.lost) * (2 * if_won.low - 1) / tested.problems as gain_low,
    (tested.won + tested.lost) * (1 - 2 * if_lost.low) / tested.problems as gain_high,
    tested.p_value
from tested
inner join lowest as if_won
    on tested.run_id = if_won.run_id and tested.model = if_won.model and tested.won = if_won.wins
inner join lowest as if_lost
    on tested.run_id = if_lost.run_id and tested.model = if_lost.model and tested.lost = if_lost.wins
order by tested.run_id asc, tested.model asc
