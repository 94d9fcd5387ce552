"""kuberay.yaml against the project and the pinned Ray."""

import re
import shlex
from typing import Any

import pytest
import yaml

from flows.settings.compose import compose
from tests.support.harness import ROOT

FILE = ROOT / "deployments" / "kuberay.yaml"


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    found = list(yaml.safe_load_all(FILE.read_text()))
    return {document["kind"]: document for document in found}


def test_the_token_is_on_and_comes_from_a_secret_that_is_not_in_the_file(objects):
    auth = objects["RayCluster"]["spec"]["authOptions"]
    assert auth["mode"] == "token"
    assert f"secret generic {auth['secretName']} " in FILE.read_text()
    assert "Secret" not in objects


def test_cluster_and_job_fit_each_other_and_the_pinned_ray(objects):
    cluster, job = objects["RayCluster"], objects["RayJob"]["spec"]
    assert job["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert cluster["spec"]["rayVersion"] == pinned.group(1)
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert head["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    program, command, *overrides = shlex.split(job["entrypoint"])
    assert (program, command) == ("countdown-train", "run")
    config = compose(overrides)
    assert config.resources.ray_address == "auto"
    # Else a job could never be scheduled on one pod of this size.
    cpus = int(head["containers"][0]["resources"]["limits"]["cpu"])
    threads = config.rollout.num_engines * config.resources.rollout_threads
    assert cpus >= config.resources.learner_threads + threads


def test_no_pod_gets_more_rights_and_no_stranger_reaches_ray(objects):
    cluster, job = objects["RayCluster"], objects["RayJob"]["spec"]["submitterPodTemplate"]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for pod in [*(group["template"]["spec"] for group in groups), job["spec"]]:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
    policy = objects["NetworkPolicy"]["spec"]
    own = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    assert policy["podSelector"] == own
    assert policy["policyTypes"] == ["Ingress"]
    among_each_other, to_the_head = policy["ingress"]
    assert among_each_other == {"from": [{"podSelector": own}]}
    assert to_the_head["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert {"podSelector": {"matchLabels": job["metadata"]["labels"]}} in to_the_head["from"]
    assert all("podSelector" in source for source in to_the_head["from"])
