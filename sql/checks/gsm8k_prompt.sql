-- one row per problem whose prompt does not end in a user message, or does not say to write ####.
-- Proves that the model is told how the scorer finds its answer.
with problems as (
    select
        'train' as split,
        extra_info.index,
        prompt[-1].role as role,
        prompt[-1].content as content
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        prompt[-1].role as role,
        prompt[-1].content as content
    from test
)

select
    split,
    index,
    role,
    content
from problems
where
    role is distinct from 'user'
    or contains(content, '####') is distinct from true
order by split, index
