-- one row per start of a run: when, why (started, or what ended the attempt before), and
-- the settings that a person changed for it.
-- Ask it what went wrong in the night and how often.
-- Example: countdown-train sql attempts --run latest
with starts as (
    select
        run_id,
        unnest(attempts_list) as attempt,
        generate_subscripts(attempts_list, 1) as number
    from runs
)

select
    run_id,
    number,
    cast(attempt ->> 'started_at' as timestamptz) as started_at,
    attempt ->> 'reason' as reason,
    nullif(attempt ->> 'asked', '') as asked
from starts
order by run_id asc, number asc
