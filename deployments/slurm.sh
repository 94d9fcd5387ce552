#!/bin/bash
# A run on the nodes of one Slurm job: a Ray head on the first, Ray nodes on the others.
#   sbatch --nodes=2 deployments/slurm.sh preset=tinyzero-3b storage.root=/shared/outputs
# In the repository's root; the root, its .venv and storage.root are on a disk that all nodes share.
#
# Never run under Slurm itself. tests/deployments/test_slurm.py runs this file with real Rays on loopback,
# and commands in place of srun and scontrol.
#
#SBATCH --job-name=countdown-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
# Two minutes before its time is over, the run saves and ends; the requeued job continues from there.
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
# For cards: #SBATCH --gpus-per-node=1
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
PATH="$PWD/.venv/bin:$PATH"

# Ray listens on all of a node's addresses, but serves only clients with the token. The token is in no
# file and no command line; srun passes it on in the environment.
umask 077
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
export RAY_AUTH_TOKEN
unset RAY_ADDRESS RAY_AUTH_TOKEN_PATH

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
cpus=${SLURM_CPUS_PER_TASK:-1}
# The port depends on the job's number, as two jobs may share a node.
port=${RAY_PORT:-$((20000 + SLURM_JOB_ID % 10000))}
ip=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address)
ip=${ip%% *}

started=()
trap 'kill "${started[@]}" 2>/dev/null; wait' EXIT

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --block --disable-usage-stats --include-dashboard=false \
    --node-ip-address="$ip" --port="$port" --num-cpus="$cpus" &
started+=($!)
until ray health-check --address="$ip:$port" 2>/dev/null; do
    kill -0 "${started[0]}" || { echo "slurm.sh: no Ray head on $head" >&2; exit 1; }
    sleep 1
done
others=$((${#nodes[@]} - 1))
if ((others > 0)); then
    srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" \
        ray start --block --disable-usage-stats --address="$ip:$port" --num-cpus="$cpus" &
    started+=($!)
fi
python -P - "$ip:$port" "${#nodes[@]}" <<'PYTHON' &
import sys
import time

import ray

address, wanted = sys.argv[1], int(sys.argv[2])
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + 300
while (alive := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"slurm.sh: {alive} of {wanted} nodes have joined the Ray at {address} in 300 s")
    time.sleep(1)
PYTHON
joining=$!
wait -n "$joining" "${started[@]}" || exit 1
if kill -0 "$joining" 2>/dev/null; then
    kill "$joining"
    echo "slurm.sh: a Ray node ended before all had joined" >&2
    exit 1
fi

# The run is named after the job, so that a requeued job continues its run.
[[ " $*" == *" run_id="* ]] || set -- "run_id=slurm-$SLURM_JOB_ID" "$@"
# 90 s of the two minutes that --signal leaves.
[[ " $*" == *" trainer.stop_grace_s="* ]] || set -- "$@" trainer.stop_grace_s=90
countdown-train run "resources.ray_address=$ip:$port" "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' TERM INT
code=0
wait "$run" || code=$?
# A signal ends `wait`, not the run.
while kill -0 "$run" 2>/dev/null; do
    code=0
    wait "$run" || code=$?
done
exit "$code"
