-- one row per setting that is not the same in all runs: how many runs have which value.
-- Ask it what two runs did differently (--run takes one; name two with -p runs=a,b).
-- Example: countdown-train sql settings_that_differ -p runs=20261120-235631-amber,20261121-235631-birch
-- $runs: str = all (run ids with commas between them, or all)
with chosen as (
    select
        run_id,
        key,
        value
    from settings
    where $runs = 'all' or list_contains(string_split($runs, ','), run_id)
),

num_runs as (
    select count(distinct run_id) as total
    from chosen
),

per_value as (
    select
        key,
        value,
        count(*) as runs,
        string_agg(run_id, ', ' order by run_id) as run_ids
    from chosen
    group by key, value
)

select
    per_value.key,
    per_value.value,
    per_value.runs,
    per_value.run_ids
from per_value
cross join num_runs
where per_value.runs < num_runs.total and per_value.key not in ('run_id', 'storage.root')
order by per_value.key asc, per_value.runs desc, per_value.value asc
