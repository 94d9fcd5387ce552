-- one row per start of a run: when, from which step, why (started, or what ended the attempt before),
-- the settings that a retry changed, those that a person changed, and what to do next.
-- Ask it what went wrong in the night and how often.
-- Example: countdown-train sql attempts --run latest
with starts as (
    select
        run_id,
        attempts,
        next_step,
        unnest(attempts_list) as attempt,
        generate_subscripts(attempts_list, 1) as number
    from runs
)

select
    run_id,
    number,
    cast(attempt ->> 'started_at' as timestamptz) as started_at,
    cast(attempt ->> 'from_step' as bigint) as from_step,
    attempt ->> 'reason' as reason,
    nullif(
        array_to_string(
            list_transform(
                json_keys(attempt, '$.changes'),
                lambda name: name || '=' || (attempt ->> ('$.changes."' || name || '"[1]'))
            ),
            ' '
        ),
        ''
    ) as changed_by_retry,
    nullif(coalesce(attempt ->> 'overrides', attempt ->> 'asked'), '') as changed_by_you,
    if(number = attempts, next_step, null) as next_step
from starts
order by run_id asc, number asc
