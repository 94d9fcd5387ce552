-- one row per run, changed reward, and pair of verdicts: rollouts before and after scoring anew.
-- Ask it how another reward would have scored; `countdown-train rescore RUN env.answer_from=last_line` writes it.
-- Example: countdown-train sql rescored -p settings=env.answer_from=last_line
-- $settings: str = any (the changed settings as they were given, or any)
select
    rescores.run_id,
    rescores.changed,
    rollouts.verdict as verdict_before,
    rescores.verdict as verdict_after,
    count(*) as rollouts,
    avg(rollouts.score) as score_before,
    avg(rescores.score) as score_after
from rescores
inner join rollouts
    on
        rescores.run_id = rollouts.run_id
        and rescores.step = rollouts.step
        and rescores.group_id = rollouts.group_id
        and rescores.sample_index = rollouts.sample_index
where $settings = 'any' or rescores.changed = $settings
group by rescores.run_id, rescores.changed, rollouts.verdict, rescores.verdict
order by rescores.run_id asc, rescores.changed asc, rollouts desc, verdict_before asc, verdict_after asc
