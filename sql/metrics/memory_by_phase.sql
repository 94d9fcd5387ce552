-- one row per run and phase: the most memory that the learner took in it, in GiB, and the step of that peak.
-- On a card that is its tensors; on a CPU the memory of its process, like memory/host_gib/learner.
-- Ask it which phase would run out first, and whether memory still grows.
-- Example: countdown-train sql memory_by_phase --run latest
with phases as (
    select
        run_id,
        step,
        value,
        replace(metric, 'memory/peak_gib/', '') as phase
    from metrics
    where starts_with(metric, 'memory/peak_gib/')
)

select
    run_id,
    phase,
    max(value) as peak_gib,
    arg_max(step, value) as at_step,
    arg_min(value, step) as first_gib,
    arg_max(value, step) as last_gib
from phases
group by run_id, phase
order by run_id asc, peak_gib desc
