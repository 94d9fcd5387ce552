-- one row per problem that has a number outside env.min_number..env.max_number.
-- Proves that the numbers are those that the settings allow.
-- $min_number: int = 1 (env.min_number)
-- $max_number: int = 99 (env.max_number)
select
    split,
    index,
    nums
from problems
where
    list_min(nums) < $min_number
    or list_max(nums) > $max_number
order by split, index
