-- one row per problem whose data source, ability or reward style is not the one of env=gsm8k.
-- Proves that this project and verl choose the right scorer for every row.
with problems as (
    select
        'train' as split,
        extra_info.index,
        data_source,
        ability,
        reward_model.style
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        data_source,
        ability,
        reward_model.style
    from test
)

select
    split,
    index,
    data_source,
    ability,
    style
from problems
where
    data_source is distinct from 'openai/gsm8k'
    or ability is distinct from 'math'
    or style is distinct from 'rule'
order by split, index
