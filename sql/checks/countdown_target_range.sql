-- one row per problem whose target lies outside env.min_target..env.max_target.
-- Proves that the targets are those that the settings allow.
-- $min_target: int = 10 (env.min_target)
-- $max_target: int = 99 (env.max_target)
with problems as (
    select
        'train' as split,
        extra_info.index,
        target
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        target
    from test
)

select
    split,
    index,
    target
from problems
where target not between $min_target and $max_target
order by split, index
