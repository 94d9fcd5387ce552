-- one row per run and step: tokens per second of generation, and seconds by phase.
-- Ask it how fast a run is, whether it slows down, and which phase to blame.
-- Example: countdown-train sql throughput_by_step --run latest
select
    run_id,
    step,
    max(value) filter (where metric = 'rollout/tokens_per_s') as tokens_per_s,
    max(value) filter (where metric = 'timing_s/step') as step_s,
    max(value) filter (where metric = 'timing_s/gen') as gen_s,
    max(value) filter (where metric = 'timing_s/update_actor') as update_actor_s,
    max(value) filter (where metric = 'timing_s/update_critic') as update_critic_s,
    max(value) filter (where metric = 'timing_s/testing') as testing_s,
    max(value) filter (where metric = 'timing_s/save_checkpoint') as save_s
from metrics
where starts_with(metric, 'timing_s/') or metric = 'rollout/tokens_per_s'
group by run_id, step
order by run_id asc, step asc
