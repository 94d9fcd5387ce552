-- one row per problem whose target is outside env.min_target..env.max_target.
-- Proves that the targets are those that the settings allow.
-- $min_target: int = 10 (env.min_target)
-- $max_target: int = 99 (env.max_target)
select
    split,
    index,
    target
from problems
where target not between $min_target and $max_target
order by split, index
