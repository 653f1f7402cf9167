#!/bin/sh
# Installs NVIDIA Dynamo into a Python venv of its own: $PLIMSOLL_DYNAMO, or ~/.cache/plimsoll-peers/dynamo (0.7 GB).
# The version is pinned: figures of another release are not comparable with those that we publish. `--no-deps`, because a
# dependency that is not needed here (`aisimulate`) is only a stub on PyPI.
set -eu
venv=${PLIMSOLL_DYNAMO:-$HOME/.cache/plimsoll-peers/dynamo}
[ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
pip="$venv/bin/python3 -m pip"
$pip install --quiet --disable-pip-version-check --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
$pip install --quiet --disable-pip-version-check 'aiohttp<4' certifi msgspec 'prometheus-client<1' pyzmq 'redis<9' tqdm \
    transformers typing-extensions 'zstandard<1' 'kubernetes<33' 'pydantic<=2.13.5' uvloop
$pip list --disable-pip-version-check 2>/dev/null | grep -E '^ai-dynamo'
echo "Dynamo is in $venv"
