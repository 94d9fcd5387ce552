-- one row per run and step: how far the engine's log-probs are from the learner's, in nats per token.
-- Ask it whether the rollout engine runs stale or rounded weights: it should stay flat and near 0.
-- Example: countdown-train sql logprob_gap_by_step -p tolerance=0.001
-- $tolerance: float = 0.01 (a response above it counts as off)
select
    run_id,
    step,
    avg(logprob_gap_mean) as mean_gap,
    max(abs(logprob_gap_mean)) as max_gap,
    count(*) filter (where abs(logprob_gap_mean) > $tolerance) / count(*) as off_share
from rollouts
where logprob_gap_mean is not null
group by run_id, step
order by run_id asc, step asc
