#!/bin/sh
# One run under Flower's own simulation (Ray), as a check: it has the bits of `fedapa run`, which is much faster.
# usage: examples/ray.sh [FOLDER]   (fedapa[flower,ray] must be on the path)
set -eu
folder=${1:-$(mktemp -d)}
mkdir -p "$folder/app" "$folder/run"
cd "$folder"
home=$PWD/flwr
cleanup() { # Flower leaves a SuperLink running; it is the one that was given this home
    for process in /proc/[0-9]*; do
        if grep -qsz "^FLWR_HOME=$home\$" "$process/environ"; then kill "${process#/proc/}" 2>/dev/null || true; fi
    done
}
trap cleanup EXIT

cat > run/config.toml <<END
methods = ["fedapa"]
seeds = [0]
[data]
source = "digits"
clients = 4
alpha = 0.5
[model]
name = "mlp"
[training]
lr = 0.05
batch = 32
epochs = 1
[run]
rounds = 2
engine = "torch"
END

fedapa coordinator init --proxy-port 0                                 # only for the sites' folders: nothing is started
for site in amber birch cedar dune; do fedapa coordinator add-site "$site"; done
python -c 'from fedapa.transports.flower.session import APP; print(APP)' > app/pyproject.toml
echo "Apache-2.0" > app/LICENSE
env FLWR_HOME="$home" FEDAPA_SITES="$PWD/kits" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 RAY_USAGE_STATS_ENABLED=0 \
    flwr run app local --stream -c "config=\"$PWD/run\"" \
    --federation-config "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=2"
fedapa compare run
echo "everything is in $folder"
