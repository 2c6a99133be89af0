#!/bin/sh
# A whole federation on this machine: a coordinator, four sites with handwritten digits, five rounds of three methods.
# usage: examples/federation.sh [FOLDER]   (fedapa[flower] must be on the path)
set -eu
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
cd "$folder"
cleanup() {
    for site in north east south west; do fedapa site leave "kits/$site" 2>/dev/null || true; done
    fedapa coordinator stop || true
}
trap cleanup EXIT

cat > digits.toml <<END
methods = ["local", "fedavg", "fedapa"]
[data]
source = "digits"
clients = 4
alpha = 0.5
[model]
name = "cnn8"
[training]
lr = 0.02
batch = 16
[run]
rounds = 5
[federation]
min_sites = 4
END

fedapa coordinator init --proxy-port 0                 # all sites are on this machine: no proxy is needed
for site in north east south west; do fedapa coordinator add-site "$site"; done
fedapa coordinator start --detach
for site in north east south west; do fedapa site join "kits/$site" --detach; done
fedapa coordinator run digits.toml --out runs/demo
fedapa coordinator status runs/demo
echo "everything is in $folder"
