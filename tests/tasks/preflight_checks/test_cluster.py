from rl_core.config.run import ResourcesConfig, RunConfig
from rl_core.workers import ray_auth
from tasks.preflight_checks import cluster as module
from tasks.preflight_checks.cluster import cluster_findings


def test_a_ray_address_of_the_environment_is_named_and_not_used(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert list(cluster_findings(RunConfig())) == []
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (ray,) = cluster_findings(RunConfig())
    assert ray.level == "ok"
    assert "RAY_ADDRESS=127.0.0.1:9 is not used, the run starts a Ray of its own" in ray.message


def test_an_automatic_address_that_leads_nowhere_is_fatal(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for reader in (module, ray_auth):
        monkeypatch.setattr(reader, "RAY_CLUSTER_FILE", tmp_path / "ray_current_cluster")
    auto = RunConfig(resources=ResourcesConfig(ray_address="auto"))
    (none,) = cluster_findings(auto)
    assert none.level == "fatal"
    assert "finds no Ray (ray start was not called here)" in none.message
    (tmp_path / "ray_current_cluster").write_text("127.0.0.1:9\n")
    (stale,) = cluster_findings(auto)
    assert stale.level == "fatal"
    assert "which means 127.0.0.1:9, finds no Ray (127.0.0.1:9: " in stale.message
    assert f"after removing {tmp_path / 'ray_current_cluster'}" in stale.remedy
