-- one row per turn of a rollout, in their order: what the model wrote, or what the env replied.
-- A response that the model wrote in one go is one turn.
with whole as (
    select
        run_id,
        step,
        prompt_index,
        group_id,
        sample_index,
        verdict,
        coalesce(
            turns,
            [{ 'author': 'model', 'tokens': response_tokens, 'text': response, 'reward': 0.0 }]
        ) as turns
    from rollouts
)

select
    whole.run_id,
    whole.step,
    whole.prompt_index,
    whole.group_id,
    whole.sample_index,
    whole.verdict,
    numbered.turn,
    whole.turns[numbered.turn].author as author,
    whole.turns[numbered.turn].tokens as tokens,
    whole.turns[numbered.turn].text as text,
    whole.turns[numbered.turn].reward as reward
from whole
cross join unnest(generate_series(1, len(whole.turns))) as numbered (turn)
