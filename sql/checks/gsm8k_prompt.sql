-- one row per problem whose prompt is not one user message, a question within the template of env.prompt_template.
-- Proves that the prompt holds a question and says how the scorer finds the answer.
-- $before: str = none (the message, up to the question)
-- $after: str = none (from the question on)
select
    split,
    index,
    prompt
from problems
where
    len(prompt) is distinct from 1
    or prompt[1].role is distinct from 'user'
    or starts_with(prompt[1].content, $before) is distinct from true
    or ends_with(prompt[1].content, $after) is distinct from true
    or (trim(prompt[1].content[len($before) + 1:-(len($after) + 1)]) != '') is distinct from true
order by split, index
