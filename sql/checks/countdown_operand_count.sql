-- one row per problem with fewer or more numbers than env.min_operands..env.max_operands.
-- Proves that every problem has as many numbers as the settings allow.
-- $min_operands: int = 3 (env.min_operands)
-- $max_operands: int = 4 (env.max_operands)
select
    split,
    index,
    nums,
    len(nums) as num_operands
from problems
where len(nums) not between $min_operands and $max_operands
order by split, index
