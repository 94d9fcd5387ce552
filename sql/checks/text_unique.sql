-- one row per prompt, its white space aside, that a split holds more than once.
-- Proves that no problem counts twice.
select
    split,
    list_transform(prompt, lambda m: trim(regexp_replace(m.content, '\s+', ' ', 'g'))) as words,
    count(*) as num_rows,
    min(index) as first_index,
    max(index) as last_index
from problems
group by split, words
having count(*) > 1
order by split, first_index
