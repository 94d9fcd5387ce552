-- one row per problem in which something is missing: a null field, list or message.
-- Proves that no reader needs to think of nulls.
with problems as (
    select
        'train' as split,
        data_source,
        prompt,
        ability,
        reward_model,
        extra_info
    from train
    union all
    select
        'test' as split,
        data_source,
        prompt,
        ability,
        reward_model,
        extra_info
    from test
)

select
    split,
    extra_info.index,
    reward_model.ground_truth,
    extra_info.solution
from problems
where
    data_source is null
    or ability is null
    or prompt is null
    or len(list_filter(prompt, lambda m: m.role is null or m.content is null)) > 0
    or reward_model.style is null
    or reward_model.ground_truth is null
    or extra_info.split is null
    or extra_info.index is null
    or extra_info.num_solutions is null
    or extra_info.solution is null
