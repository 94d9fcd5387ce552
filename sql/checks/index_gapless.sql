-- one row per index that is doubled or outside 0..rows - 1 of its split.
-- Proves that the indices are 0, 1, 2, ... without gaps, so that a logged index finds its problem.
with counted as (
    select
        split,
        index,
        count(*) over (partition by split) as split_rows
    from problems
)

select
    split,
    index,
    count(*) as num_rows,
    any_value(split_rows) as split_rows
from counted
group by split, index
having
    count(*) > 1
    or (index between 0 and any_value(split_rows) - 1) is distinct from true
order by split, index
