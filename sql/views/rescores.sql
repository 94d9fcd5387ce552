-- one row per rollout that was scored anew with a changed reward (`countdown-train rescore`).
select
    run_id,
    changed,
    step,
    group_id,
    sample_index,
    verdict,
    score
from rescore_rows
