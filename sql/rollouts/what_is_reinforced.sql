-- one row per run and verdict: the advantage that such responses got, and their share.
-- Ask it what training pushes towards and away from; format credit shows as a positive advantage.
-- Example: countdown-train sql what_is_reinforced -p from_step=10
-- $from_step: int = 1 (leave out earlier steps)
select
    run_id,
    verdict,
    count(*) as rollouts,
    count(*) / sum(count(*)) over (partition by run_id) as share,
    avg(score) as mean_score,
    avg(reward) as mean_reward,
    avg(advantage_mean) as mean_advantage,
    avg(response_tokens) as mean_tokens
from rollouts
where step >= $from_step
group by run_id, verdict
order by run_id asc, rollouts desc, verdict asc
