-- one row per problem whose stored solution the scorer does not call correct, or that counts none.
-- Proves that every problem is solvable: the solution is evaluated again, by the reward itself.
with problems as (
    select
        'train' as split,
        extra_info.index,
        nums,
        target,
        extra_info.solution,
        extra_info.num_solutions
    from train
    union all
    select
        'test' as split,
        extra_info.index,
        nums,
        target,
        extra_info.solution,
        extra_info.num_solutions
    from test
)

select
    split,
    index,
    nums,
    target,
    solution,
    num_solutions
from problems
where
    evaluates_to(solution, list_filter(nums, lambda n: n is not null), target) is distinct from true
    or (num_solutions >= 1) is distinct from true
order by split, index
