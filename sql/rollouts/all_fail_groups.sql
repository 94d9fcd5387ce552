-- one row per run and step with groups of responses to one prompt: how many groups failed as a whole.
-- Ask it how much of a batch teaches nothing, and in how many of those only the format credit differs.
-- Example: countdown-train sql all_fail_groups --run latest
with response_groups as (
    select
        run_id,
        step,
        group_id,
        count(*) as responses,
        count(*) filter (where verdict = 'correct') as solved,
        max(score) - min(score) as score_spread
    from rollouts
    group by run_id, step, group_id
)

select
    run_id,
    step,
    count(*) as total_groups,
    count(*) filter (where solved = 0) as all_fail,
    count(*) filter (where solved = 0) / count(*) as all_fail_share,
    count(*) filter (where solved = 0 and score_spread > 0) as all_fail_with_spread,
    count(*) filter (where solved = responses) as all_solved
from response_groups
where responses > 1
group by run_id, step
order by run_id asc, step asc
