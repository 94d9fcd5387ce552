-- one row per run and step: how many of a prompt's responses and answers differ from one another.
-- Ask it whether sampling still explores: near 1 all differ, at 1 / group_size all are the same.
-- Example: countdown-train sql diversity_by_step --run latest
with response_groups as (
    select
        run_id,
        step,
        group_id,
        count(*) as responses,
        count(distinct hash(response)) as distinct_responses,
        count(distinct coalesce(answer, '')) as distinct_answers
    from rollouts
    group by run_id, step, group_id
)

select
    run_id,
    step,
    count(*) as prompts,
    sum(distinct_responses) / sum(responses) as distinct_response_share,
    sum(distinct_answers) / sum(responses) as distinct_answer_share
from response_groups
where responses > 1
group by run_id, step
order by run_id asc, step asc
