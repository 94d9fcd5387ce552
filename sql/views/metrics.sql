-- one row per run, step and metric (verl's names, as in `critic/score/mean`).
-- A half-written last line is left out; a step that was redone after a resume counts once, as redone.
with lines as (
    select
        run_id,
        line_number,
        try_cast(line ->> 'step' as bigint) as step,
        try_cast(line ->> 'epoch' as bigint) as epoch,
        try_cast(line ->> 'time' as timestamptz) as logged_at,
        from_json(line, '"map(varchar, double)"') as entries
    from metric_lines
    where json_valid(line) and try_cast(line ->> 'step' as bigint) is not null
),

counted as (
    select
        *,
        count(*) over (partition by run_id, step) as num_lines
    from lines
),

named_values as (
    select
        run_id,
        line_number,
        num_lines,
        step,
        epoch,
        logged_at,
        unnest(map_keys(entries)) as metric,
        unnest(map_values(entries)) as value
    from counted
),

numbers as (
    select *
    from named_values
    where isfinite(value) and metric not in ('step', 'epoch', 'time')
),

-- only where a step has several lines: a window over all of them takes as long as the rest
redone as (
    select *
    from numbers
    where num_lines > 1
    qualify row_number() over (partition by run_id, step, metric order by line_number desc) = 1
)

select
    run_id,
    step,
    epoch,
    logged_at,
    metric,
    value
from numbers
where num_lines = 1
union all
select
    run_id,
    step,
    epoch,
    logged_at,
    metric,
    value
from redone
