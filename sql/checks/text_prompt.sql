-- one row per problem whose prompt holds no words.
-- Proves that the model is asked something.
select
    split,
    index,
    prompt
from problems
where (len(list_filter(prompt, lambda m: trim(m.content, e' \t\r\n') != '')) > 0) is distinct from true
order by split, index
