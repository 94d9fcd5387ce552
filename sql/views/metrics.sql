-- one row per run, step and metric (verl's names, as in `critic/score/mean`).
-- A half-written last line is left out; a step that was redone after a resume counts once, as redone.
with lines as (
    select
        run_id,
        line_number,
        line
    from metric_lines
    where json_valid(line)
),

named_values as (
    select
        lines.run_id,
        lines.line_number,
        cast(lines.line ->> 'step' as bigint) as step,
        cast(lines.line ->> 'epoch' as bigint) as epoch,
        cast(lines.line ->> 'time' as timestamptz) as logged_at,
        entries.key as metric,
        try_cast(entries.value as double) as value
    from lines
    cross join json_each(lines.line) as entries
    where entries.key not in ('step', 'epoch', 'time')
)

select
    run_id,
    step,
    epoch,
    logged_at,
    metric,
    value
from named_values
where value is not null
qualify row_number() over (partition by run_id, step, metric order by line_number desc) = 1
