-- one row per problem, in any order of its numbers, that a split holds more than once.
-- Proves that no problem counts twice.
select
    split,
    list_sort(nums) as numbers,
    target,
    count(*) as num_rows,
    min(index) as first_index,
    max(index) as last_index
from problems
group by split, numbers, target
having count(*) > 1
order by split, first_index
