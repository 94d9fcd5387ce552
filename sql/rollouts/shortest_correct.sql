-- one row per correct rollout, the shortest of each run: a fooled scorer shows here first.
-- Ask it whether answers are worked out, guessed or gamed.
-- Example: countdown-train sql shortest_correct -p limit=3 --run latest
-- $limit: int = 5 (rows per run at most)
with shortest as ( -- without the text, which is then read only for these few
    select
        run_id,
        step,
        group_id,
        sample_index
    from rollouts
    where verdict = 'correct'
    qualify
        row_number() over (
            partition by run_id
            order by response_tokens asc, step asc, group_id asc, sample_index asc
        ) <= $limit
)

select
    rollouts.run_id,
    rollouts.step,
    rollouts.prompt_index,
    rollouts.response_tokens,
    rollouts.answer,
    rollouts.response,
    rollouts.prompt
from rollouts
inner join shortest
    on
        rollouts.run_id = shortest.run_id
        and rollouts.step = shortest.step
        and rollouts.group_id = shortest.group_id
        and rollouts.sample_index = shortest.sample_index
order by
    rollouts.run_id asc,
    rollouts.response_tokens asc,
    rollouts.step asc,
    rollouts.group_id asc,
    rollouts.sample_index asc
