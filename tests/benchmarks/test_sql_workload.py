from tasks.queries import sql
from tests.support.harness import benchmark


def test_made_up_runs_answer_as_real_ones_do(tmp_path):
    workload = benchmark("sql_workload")
    workload.TEST_PROBLEMS = 8
    author = workload.Author()
    done = workload.write_run(tmp_path, "done", 3, author, finish=True)
    going_on = workload.write_run(tmp_path, "going-on", 2, author, finish=False)
    assert done.rows == 3 * workload.STEP_ROWS
    asked = """
        select run_id, count(*), count(distinct response), sum(length(prompt) + length(response))
        from rollouts group by all order by all
    """
    written = sql.run_query(asked, root=tmp_path).rows()
    assert written == [
        (run_id, made.rows, made.rows, made.text_chars)
        for run_id, made in (("done", done), ("going-on", going_on))
    ]
    asked_of = ("tokens_spent", "rescored", "majority_vote", "metric_summary", "solved_and_lost")
    for question in asked_of:
        assert sql.ask(question, root=tmp_path).height
