-- one row per problem whose stored solution the scorer does not call correct, or whose number of solutions is below 1.
-- Proves that every problem is solvable: the solution is evaluated again, as the reward does it.
select
    split,
    index,
    nums,
    target,
    solution,
    num_solutions
from solutions
where
    not is_correct
    or (num_solutions >= 1) is distinct from true
order by split, index
