#!/bin/bash
# Ray inside a Slurm allocation: sbatch slurm_ray.sh. The last line is the command to run.
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32
export RAY_AUTH_MODE=token
ray get-auth-token --generate > /dev/null  # kept in ~/.ray/auth_token, which all nodes see
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
options=(--num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "$SLURM_GPUS_PER_NODE" --block)
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port 6379 "${options[@]}" &
for try in {1..60}; do
  timeout 30 ray status --address "$head:6379" > ray-status.txt 2>&1 && break
  if [ "$try" = 60 ]; then echo "no Ray cluster on $head after 60 tries, see ray-status.txt" >&2; exit 1; fi
  sleep 2
done
srun --nodes=3 --ntasks=3 --exclude "$head" ray start --address "$head:6379" "${options[@]}" &
mechclust run mossa --preset paper --engine ray --address "$head:6379" --gpus-per-job 1 --out "$HOME/runs/mossa"
