-- one row per problem whose prompt does not end in a user message that asks for its own numbers and target.
-- Proves that the model is asked what it is scored on.
with problems as (
    select
        'train' as split,
        extra_info.index,
        nums,
        target,
        prompt[-1].role as role,
        prompt[-1].content as content
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        nums,
        target,
        prompt[-1].role as role,
        prompt[-1].content as content
    from test
)

select
    split,
    index,
    nums,
    target,
    role,
    content
from problems
where
    role is distinct from 'user'
    or contains(
        content,
        'Using the numbers [' || array_to_string(nums, ', ') || '], create an equation that equals ' || target || '. '
    ) is distinct from true
order by split, index
