-- one row per run whose trained model was compared with the champion of its problems, the newest first.
-- Ask it which run is worth continuing from, and by how much it was better than the champion before.
-- Example: countdown-train sql champions --run latest
select
    run_id,
    preset,
    accuracy_before,
    accuracy_after,
    starts_with(champion, 'promoted') as promoted,
    champion as outcome,
    started_at
from runs
where champion is not null
order by started_at desc nulls last, run_id asc
