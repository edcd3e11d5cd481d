#!/usr/bin/env bash
# The whole story in about three minutes: compare strategies, measure this machine, plan a run, run it, compare the two.
#
#     make demo                     installs tacit into .venv first
#     bash examples/demo.sh demo    with tacit on the PATH; results go to the folder demo
#
# Step 1 is simulated. Steps 2 to 4 are about two processes on this machine. Needs no network and no root.

set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-demo}
export OMP_NUM_THREADS=1 # one core for each process

workload='digits(model="mlp", hidden=32768)' # 2.5 million parameters: a step takes at least 5 ms
lr=0.2
target=0.1

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
    local word
    printf '$'
    for word in "$@"; do
        case $word in
            *[!A-Za-z0-9_./=-]*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$@"
}

say "1/5  Compare five strategies on simulated workers, one slow, one behind a slow link → $out/compare/report.html"
run tacit compare --workload 'digits(model="mlp")' --cluster examples/slow_worker_and_link.toml \
    -s AllReduce -s 'LocalSGD(period=VariancePeriod(initial=4))' -s EF21 -s 'KAsync(k=4)' \
    -s 'SwarmSGD(compressor=Lattice(bits=8))' --steps 600 --lr 0.2 --seeds 3 --out "$out/compare" --force

say "2/5  Measure two processes on this machine: steps, rounds, costs of compression → $out/profile/profile.toml"
run tacit probe --workload "$workload" --lr "$lr" --workers 2 --budget 25s --out "$out/profile" --force

say "3/5  Plan: which strategy reaches loss $target first, and when? → $out/plan.html"
run tacit plan --profile "$out/profile" --workload "$workload" --lr "$lr" --target-loss "$target" \
    -s 'LocalSGD(period=Every(4))' -s 'LocalSGD(period=VariancePeriod(initial=4))' -s EF21 -s 'KAsync(k=1)' \
    --no-tune --seeds 2 --steps 600 --budget 60s --out "$out/plan.toml" --force || [ $? -eq 3 ] # 3: stay with DDP

say "4/5  Run the plan on real processes; follow it with: tacit watch $out/run → $out/run"
run tacit train --plan "$out/plan.toml" --workload "$workload" --lr "$lr" --steps 300 --evaluate-every 5 \
    --out "$out/run" --force --progress

say "5/5  Predicted next to measured → $out/run/report.html, and all on one page → $out/report.html"
run tacit report "$out/run"
run python -m tools.demo_page "$out"
