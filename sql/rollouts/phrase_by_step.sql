-- one row per run and step: how many responses hold a phrase, and how those score compared with the others.
-- Ask it whether a habit (checking, counting, giving up) grows, and whether it pays.
-- Example: countdown-train sql phrase_by_step -p pattern='(?i)check' --run latest
-- $pattern: str = (?i)wait (a regular expression; alternatives, as in wait|check, take twice as long)
with marked as (
    select
        run_id,
        step,
        verdict = 'correct' as is_correct,
        regexp_matches(response, $pattern) as is_found
    from rollouts
)

select
    run_id,
    step,
    count(*) as rollouts,
    count(*) filter (where is_found) / count(*) as share,
    avg(cast(is_correct as integer)) filter (where is_found) as accuracy_with,
    avg(cast(is_correct as integer)) filter (where not is_found) as accuracy_without
from marked
group by run_id, step
order by run_id asc, step asc
