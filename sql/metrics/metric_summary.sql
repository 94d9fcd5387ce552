-- one row per run and metric: its first, last, lowest, highest and mean value.
-- Ask it which metrics there are, and which changed most.
-- Example: countdown-train sql metric_summary -p names=timing_s/%
-- $names: str = % (those to show, % stands for anything: memory/%)
select
    run_id,
    metric,
    count(*) as steps,
    arg_min(value, step) as first_value,
    arg_max(value, step) as last_value,
    min(value) as min_value,
    max(value) as max_value,
    avg(value) as mean_value
from metrics
where metric like $names
group by run_id, metric
order by run_id asc, metric asc
