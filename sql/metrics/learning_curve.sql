-- one row per run and step: score, accuracy in training and on the test split, length, KL, entropy.
-- Ask it whether a run learns; accuracy counts correct answers only, the score has format credit too.
-- Example: countdown-train sql learning_curve --run latest
select
    run_id,
    step,
    max(value) filter (where metric = 'critic/score/mean') as score,
    max(value) filter (where metric = 'reward/accuracy') as accuracy,
    max(value) filter (where metric = 'val/accuracy') as test_accuracy,
    max(value) filter (where metric = 'val/score') as test_score,
    max(value) filter (where metric = 'response_length/mean') as response_tokens,
    max(value) filter (where metric = 'response_length/clip_ratio') as cut_share,
    max(value) filter (where metric = 'critic/kl') as kl,
    max(value) filter (where metric = 'actor/entropy_loss') as entropy,
    max(value) filter (where metric = 'actor/grad_norm') as grad_norm
from metrics
group by run_id, step
order by run_id asc, step asc
