-- one row per problem that says it belongs to another split than the file it lies in.
-- Proves that nobody swapped the files.
select
    split,
    index,
    extra_info.split as label
from problems
where extra_info.split is distinct from split
order by split, index
