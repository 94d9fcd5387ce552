-- one row per run, step and verdict, with its share of the step's rollouts.
-- Ask it what the responses are: solved, wrong, off-format or without an answer, and how that moves.
-- Example: countdown-train sql verdict_shares_by_step -p steps_per_row=10 --run latest
-- $steps_per_row: int = 1 (steps summed up in one row)
with counted as (
    select
        run_id,
        verdict,
        cast((step - 1) // $steps_per_row * $steps_per_row + 1 as bigint) as step,
        count(*) as rollouts
    from rollouts
    group by all
)

select
    run_id,
    step,
    verdict,
    rollouts,
    rollouts / sum(rollouts) over (partition by run_id, step) as share
from counted
order by run_id asc, step asc, share desc, verdict asc
