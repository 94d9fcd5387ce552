-- one row per problem that says it belongs to another split than its file's.
-- Proves that nobody swapped the files.
select
    split,
    index,
    extra_info.split as label
from problems
where extra_info.split is distinct from split
order by split, index
