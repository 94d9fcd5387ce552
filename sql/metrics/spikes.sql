-- one row per run, step and metric where a gradient or KL stood out from the run's median.
-- Ask it which batches shook the policy; look at them with `samples_of_a_verdict`.
-- Example: countdown-train sql spikes -p factor=10
-- $factor: float = 5.0 (times the median of its absolute values)
with watched as (
    select
        run_id,
        step,
        metric,
        value,
        median(abs(value)) over (partition by run_id, metric) as usual
    from metrics
    where metric in ('actor/grad_norm', 'critic/grad_norm', 'actor/ppo_kl', 'critic/kl', 'critic/vf_loss')
)

select
    run_id,
    step,
    metric,
    value,
    usual,
    abs(value) / usual as times_usual
from watched
where usual > 0 and abs(value) > $factor * usual
order by run_id asc, step asc, metric asc
