-- one row per run and step whose rollouts come from weights older than those that learned from them.
-- Ask it how far off-policy training ran: never further than rollout.staleness.
-- Example: countdown-train sql off_policy_steps
select
    run_id,
    step,
    count(*) as rollouts,
    max(step - 1 - policy_version) as steps_behind,
    avg(logprob_gap_mean) as mean_gap
from rollouts
group by run_id, step
having max(step - 1 - policy_version) > 0
order by run_id asc, step asc
