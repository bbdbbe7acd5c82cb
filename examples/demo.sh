#!/usr/bin/env bash
# The main job, start to end, on the embedded defaults and without any network.
set -euo pipefail
bin=$(cd "${BIN:-.venv/bin}" && pwd)
examples=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PAIR_KB_CACHE_DIR=$work/cache

step() { printf '\n$ pair %s\n' "$*"; "$bin/pair" "$@"; }

# Who keeps the handbook: packages it with its index, and publishes that in a folder which any host can serve.
mkdir "$work/origin" && cd "$work/origin"
cp -r "$examples/handbook" handbook
step publish "$work/dist" handbook --version 1.0.0 --tag time --with-index

# Who reads it, elsewhere: nothing is embedded here, and it can be searched at once.
mkdir "$work/elsewhere" && cd "$work/elsewhere"
step install --offline --source "$work/dist/releases.json"
step verify .pair/knowledge
step lock

# The question names Google Public NTP: meaning alone misses that, words find it, and the graph knows what else does.
question="How does Google Public NTP hide a leap second?"
for mode in keyword vector adaptive; do
    step search "$question" --mode "$mode" -k 1 --explain
done

# One that the handbook answers, and one that it cannot answer.
step ask "Which TCP port and TLS version does NTS key establishment use?"
step ask "How long does sourdough bread have to rise?"

# Its files are sources like any others: the index.txt is made of them, and the engine has them all.
step sync
printf '\n$ head .pair/index.txt\n'
head -n 8 .pair/index.txt
step status

# A page changes at its origin, and the next version is published. It is fetched by the shard.
cd "$work/origin"
printf '\n## Since this edition\n\nKey establishment may also listen on TCP port 14460 in our networks.\n' \
    >> handbook/protocols/secure-time.md
step publish "$work/dist" handbook --version 1.1.0 --tag time --with-index
cd "$work/elsewhere"
step update
step lock --check || printf '(exit status %s: the lock says 1.0.0)\n' "$?"
step diff 1.0.0 1.1.0 || printf '(exit status %s: they differ)\n' "$?"
step ask "On which other TCP port may key establishment listen?"

# And back, at once.
step rollback 1.0.0
step versions
step ask "On which other TCP port may key establishment listen?"
