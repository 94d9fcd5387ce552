-- one row per problem whose prompt is not exactly env.prompt_template with its numbers and target.
-- Proves that the model is asked what it is scored on, in the words of the template.
-- $system: str = none (content of the system message; none: there is no such message)
-- $before: str = none (the user message, up to the numbers)
-- $between: str = none (from the numbers to the target)
-- $after: str = none (from the target on)
with rendered as (
    select
        *,
        $before || '[' || array_to_string(nums, ', ') || ']' || $between || target || $after as expected
    from problems
)

select
    split,
    index,
    nums,
    target,
    prompt,
    expected
from rendered
where
    len(prompt) is distinct from if($system = 'none', 1, 2)
    or prompt[-1].role is distinct from 'user'
    or prompt[-1].content is distinct from expected
    or ($system != 'none' and (prompt[1].role is distinct from 'system' or prompt[1].content is distinct from $system))
order by split, index
