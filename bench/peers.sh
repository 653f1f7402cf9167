#!/bin/sh
# Installs the peers that `gateway` measures into a Python venv: $PLIMSOLL_PEERS, or bench/.venv-peers.
# The versions are pinned: figures of another release are not comparable with the tables that we publish.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${PLIMSOLL_PEERS:-$here/.venv-peers}
[ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
"$venv/bin/python3" -m pip install --quiet --disable-pip-version-check smg==1.13.0 vllm-router==0.1.17
"$venv/bin/python3" -m pip list --disable-pip-version-check 2>/dev/null | grep -E '^(smg|vllm-router) '
echo "peers are in $venv"
