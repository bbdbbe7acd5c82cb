#!/usr/bin/env bash
# The main job, start to end, on the embedded defaults and without any network.
set -euo pipefail
bin=$(cd "${BIN:-.venv/bin}" && pwd)
examples=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PAIR_KB_CACHE_DIR=$work/cache

step() { printf '\n$ pair %s\n' "$*"; "$bin/pair" "$@"; }

step package "$examples/handbook" -o handbook-1.0.0.zip --name handbook --version 1.0.0 --tag time
step info handbook-1.0.0.zip
step install --offline --source ./handbook-1.0.0.zip
step verify .pair/knowledge
step update

step sync
printf '\n$ head .pair/index.txt\n'
head -n 12 .pair/index.txt
step sync

# The question names Google Public NTP: meaning alone misses that, words find it, and the graph knows what else does.
question="How does Google Public NTP hide a leap second?"
for mode in keyword vector adaptive; do
    step search "$question" --mode "$mode" -k 1 --explain
done
step status

# One that the handbook answers, and one that it cannot answer.
step ask "Which TCP port and TLS version does NTS key establishment use?"
step ask "How long does sourdough bread have to rise?"
