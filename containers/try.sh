#!/bin/bash
# Build the image and run the four peers of compose.yaml for real, with podman; as root, in about five minutes.
#
#   containers/try.sh                                       on a base made of Debian's packages (needs mmdebstrap)
#   BASE=python:3.12-slim-bookworm containers/try.sh
#
# Where Debian's package prometheus is installed, it then asks the peers as in prometheus.yml, and answers what the dashboard asks.
# PODMAN="podman --runtime runc" is for machines whose default runtime does not work; BUILD has further options of the build.
# shellcheck disable=SC2086  # options are words
set -euo pipefail
cd "$(dirname "$0")/.."
PODMAN=${PODMAN:-podman}
if [ -z "${BASE:-}" ]; then
    BASE=localhost/cesar-base
    packages=python3,python3-venv,ca-certificates
    $PODMAN image exists $BASE || mmdebstrap --quiet --variant=minbase --include=$packages bookworm - | $PODMAN import --quiet - $BASE
fi
$PODMAN build --quiet --format docker ${BUILD:-} --build-arg "BASE=$BASE" -t localhost/cesar .

net=cesar-try-$$
tidy() {
    for name in peer-0 peer-1 peer-2 peer-3 prometheus; do $PODMAN rm --force --ignore --time 20 $net-$name >/dev/null || true; done
    $PODMAN volume rm --force $net >/dev/null
    $PODMAN network rm $net >/dev/null
}
$PODMAN network create $net >/dev/null
trap tidy EXIT
locked="--read-only --cap-drop all --security-opt no-new-privileges --tmpfs /tmp --no-healthcheck ${RUN:-}"
$PODMAN run --rm $locked --network none -v $net:/peer -v "$PWD/containers/setup.sh:/setup.sh:ro" --entrypoint sh localhost/cesar /setup.sh
for i in 0 1 2 3; do
    $PODMAN run --detach --name $net-peer-$i --hostname peer-$i --network $net --network-alias peer-$i $locked \
        -v $net:/peer -v "$PWD/containers/training.py:/app/training.py:ro" localhost/cesar \
        peer run /peer/$i --train training:train --set pause=0.1 >/dev/null
done

ask() { # what the status page of a peer says, from another container, with the token
    $PODMAN exec $net-peer-$2 python -c "
import json, pathlib, urllib.request as r
token = pathlib.Path('/peer/token').read_text().strip()
asked = r.Request('http://peer-$1:7500/$3', headers={'Authorization': 'Bearer ' + token})
print(r.urlopen(asked, timeout=10).read().decode())"
}
for _ in $(seq 120); do
    sleep 2
    done=0
    for i in 0 1 2 3; do
        ask $i $(((i + 1) % 4)) metrics 2>/dev/null | grep -q '^cesar_rounds_total [1-9][0-9]' && done=$((done + 1))
    done
    [ $done = 4 ] && break
done
[ $done = 4 ] || { for i in 0 1 2 3; do $PODMAN logs $net-peer-$i; done; exit 1; }
for i in 0 1 2 3; do
    $PODMAN exec $net-peer-$i python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:7500/healthz', timeout=8)"
    ask $i $(((i + 1) % 4)) metrics | grep -E '^cesar_(rounds_total|figure)' | tr '\n' ' '
    echo "— peer $i is healthy"
done

prometheus=$(command -v "${PROMETHEUS:-prometheus}" || true)
if [ -n "$prometheus" ]; then
    $PODMAN run --detach --name $net-prometheus --network $net --network-alias prometheus $locked --tmpfs /data:mode=1777 \
        -v $net:/peer:ro -v "$prometheus:/prometheus:ro" -v "$PWD/containers/prometheus.yml:/etc/prometheus/prometheus.yml:ro" \
        --entrypoint /prometheus localhost/cesar --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/data >/dev/null
    sleep 40
    $PODMAN exec -i $net-peer-0 python -c "
import json, sys, urllib.parse, urllib.request as r
for panel in json.load(sys.stdin)['panels']:
    for target in panel['targets']:
        url = 'http://prometheus:9090/api/v1/query?' + urllib.parse.urlencode({'query': target['expr']})
        found = json.load(r.urlopen(url, timeout=20))['data']['result']
        assert found, target['expr']
        print(panel['title'], '·', len(found), 'series, the first:', found[0]['value'][1])" <containers/grafana/cesar.json
fi
$PODMAN image ls --format 'image: {{.Size}}' localhost/cesar
