-- one row per problem, of a sample, whose number of solutions the exact solver does not find again.
-- Proves that difficulty labels count what the solver counts.
select
    split,
    index,
    nums,
    target,
    num_solutions,
    recounted
from recounts
where num_solutions is distinct from recounted
order by split, index
