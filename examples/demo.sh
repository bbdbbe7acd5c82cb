#!/usr/bin/env bash
# Publish, install, search, ask, update and roll back a knowledge base. Uses the defaults and no network.
set -euo pipefail
bin=$(cd "${BIN:-.venv/bin}" && pwd)
examples=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PAIR_KB_CACHE_DIR=$work/cache

step() { printf '\n$ pair %s\n' "$*"; "$bin/pair" "$@"; }

# As the publisher: package the handbook with its index, and publish it in a folder that any static host can serve.
mkdir "$work/origin" && cd "$work/origin"
cp -r "$examples/handbook" handbook
step publish "$work/dist" handbook --version 1.0.0 --tag time --with-index

# As a reader: install it. The index comes with the package, so search works at once.
mkdir "$work/elsewhere" && cd "$work/elsewhere"
step install --offline --source "$work/dist/releases.json"
step verify .pair/knowledge
step lock

# Compare modes: the question names Google Public NTP. Keywords find the name, vectors the meaning, the graph both.
question="How does Google Public NTP hide a leap second?"
for mode in keyword vector adaptive; do
    step search "$question" --mode "$mode" -k 1 --explain
done

# Ask three questions: one with an answer, one with passages that may help, and one that the handbook cannot answer.
step ask "Which TCP port and TLS version does NTS key establishment use?"
step ask "Should our team worry about leap seconds next year?"
step ask "How long does sourdough bread have to rise?"

# The installed files are sources like any others: sync them, and write an index.
step sync
printf '\n$ head .pair/index.txt\n'
head -n 8 .pair/index.txt
step status

# As the publisher: change a page and publish the next version. As a reader: update; only new shards are fetched.
cd "$work/origin"
printf '\n## Since this edition\n\nKey establishment may also listen on TCP port 14460 in our networks.\n' \
    >> handbook/protocols/secure-time.md
step publish "$work/dist" handbook --version 1.1.0 --tag time --with-index
cd "$work/elsewhere"
step update
step lock --check || printf '(exit status %s: the lock says 1.0.0)\n' "$?"
step diff 1.0.0 1.1.0 || printf '(exit status %s: they differ)\n' "$?"
step ask "On which other TCP port may key establishment listen?"

# Roll back at once.
step rollback 1.0.0
step versions
step ask "On which other TCP port may key establishment listen?"

# Add a folder of notes with front matter as a collection, and search in a part of it.
mkdir -p "$work/project/notes" && cd "$work/project"
printf -- '---\nteam: field\n---\n# Visits\n\nWe compare the roof antenna with a travelling clock every May.\n' > notes/visits.md
printf -- '---\nteam: office\n---\n# Lunch\n\nThe clock in the canteen is two minutes fast.\n' > notes/lunch.md
step add ./notes
step sync
step search "Which clock do we compare?" --filter collection=notes --filter team=field

# Publish a site: the handbook answers in the browser, from any static file host.
cd "$work/origin"
step publish "$work/dist" handbook --version 1.1.0 --tag time --site
"$bin/python" -u -m http.server 0 --bind 127.0.0.1 --directory "$work/dist/site/handbook" > "$work/host.log" 2>&1 &
host=$!
trap 'kill "$host" 2>/dev/null || true; rm -rf "$work"' EXIT
until port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/host.log") && [ -n "$port" ]; do
    kill -0 "$host" || { cat "$work/host.log"; exit 1; }
    sleep 0.1
done
if chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome); then
    printf '\n$ python examples/search_site.py "%s" http://127.0.0.1:%s/ "leap second smear"\n' "$chromium" "$port"
    HOME=$work "$bin/python" "$examples/search_site.py" "$chromium" "http://127.0.0.1:$port/" "leap second smear"
else
    printf '\n(Chromium is not installed, so the site is not searched here. It is in dist/site/handbook.)\n'
fi
