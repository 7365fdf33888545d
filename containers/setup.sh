#!/bin/sh
# Keys, a signed roster and a token for the four peers of compose.yaml; all on one machine, so for trying out only.
set -eu
[ -e /peer/0/peer.toml ] && exit 0
for i in 0 1 2 3; do
    cesar peer request --network demo --id $i --name site-$i --address peer-$i:7400 --out /peer/$i
    set -- "$@" --request /peer/$i/request.json --sha256 "$(sha256sum /peer/$i/request.json | cut -d ' ' -f 1)"
done
cesar network init --out /tmp/authority --name demo --topology complete "$@"
umask 077
token=$(python -c 'import secrets; print(secrets.token_hex(32))')
for i in 0 1 2 3; do
    cesar peer install /peer/$i --from /tmp/authority/signed/peer-$i --sha256 "$(sha256sum /tmp/authority/ca/ca.pem | cut -d ' ' -f 1)"
    sed -i 's/^status = .*/status = "0.0.0.0:7500"\nstatus_token = "..\/token"/' /peer/$i/peer.toml
done
echo "$token" >/peer/token
