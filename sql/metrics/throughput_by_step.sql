-- one row per run and step: tokens per second of generation, and seconds by phase, which add up to step_s.
-- Ask it how fast a run is, whether it slows down, and which phase to blame.
-- Example: countdown-train sql throughput_by_step --run latest
with phases as (
    select
        run_id,
        step,
        max(value) filter (where metric = 'rollout/tokens_per_s') as tokens_per_s,
        max(value) filter (where metric = 'timing_s/step') as step_s,
        max(value) filter (where metric = 'timing_s/gen') as gen_s,
        max(value) filter (where metric = 'timing_s/old_log_prob') as old_log_prob_s,
        max(value) filter (where metric = 'timing_s/ref') as ref_s,
        max(value) filter (where metric = 'timing_s/values') as values_s,
        max(value) filter (where metric = 'timing_s/update_actor') as update_actor_s,
        max(value) filter (where metric = 'timing_s/update_critic') as update_critic_s,
        max(value) filter (where metric = 'timing_s/sync') as sync_s,
        max(value) filter (where metric = 'timing_s/testing') as testing_s,
        max(value) filter (where metric = 'timing_s/save_checkpoint') as save_s
    from metrics
    where starts_with(metric, 'timing_s/') or metric = 'rollout/tokens_per_s'
    group by run_id, step
)

select
    *,
    step_s - coalesce(gen_s, 0) - coalesce(old_log_prob_s, 0) - coalesce(ref_s, 0) - coalesce(values_s, 0)
    - coalesce(update_actor_s, 0) - coalesce(update_critic_s, 0) - coalesce(sync_s, 0)
    - coalesce(testing_s, 0) - coalesce(save_s, 0) as other_s
from phases
order by run_id asc, step asc
