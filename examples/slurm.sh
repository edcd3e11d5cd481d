#!/bin/bash
#SBATCH --job-name=tacit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1          # one torchrun a node; it starts that node's workers
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --signal=TERM@120            # two minutes' notice before the time is up
# On nodes with GPUs add:  #SBATCH --gpus-per-node=4   and set WORKERS_PER_NODE=4

# tacit under SLURM: torchrun on every node of the job, and they find each other.
#
#     sbatch examples/slurm.sh                                              the built-in digits, through `tacit train`
#     sbatch examples/slurm.sh examples/train_gpt.py --data text.txt        a script of your own, with its arguments
#
# The folder the job is submitted from must be one that all nodes see: checkpoints and the run are written there.
# A job that lost a worker, or was told that its time is up, has left a checkpoint and goes on from it when it is submitted again:
#
#     sbatch examples/slurm.sh -m tacit train --resume runs/slurm-JOB

set -euo pipefail

WORKERS_PER_NODE=${WORKERS_PER_NODE:-4}
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 20000)) # jobs that share a node must not meet

if [ $# -eq 0 ]; then
    set -- -m tacit train --strategy 'LocalSGD(period=Every(8))' --steps 2000 --checkpoint-every 200 --out "runs/slurm-$SLURM_JOB_ID"
fi

export OMP_NUM_THREADS=1 # as many processes as cores; more threads would fight over them

srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$WORKERS_PER_NODE" \
    --rdzv-backend c10d --rdzv-endpoint "$FIRST_NODE:$PORT" --rdzv-id "$SLURM_JOB_ID" \
    "$@"
