#!/usr/bin/env bash
# Install the wheel into an empty environment, without the source, and use it: install, sync, ask, serve.
set -euo pipefail
bin=$(realpath "$BIN")
root=$(realpath "$(dirname "$0")/../..")
folder=$(mktemp -d)
server=""
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

wheels=("$root"/dist/*.whl)
archives=("$root"/dist/*.tar.gz)
[ ${#wheels[@]} = 1 ] && [ ${#archives[@]} = 1 ] || { echo "Cannot test dist/: it must hold one wheel and one archive." >&2; exit 1; }

# The source distribution holds what builds the same wheel.
tar -xzf "${archives[0]}" -C "$folder"
(cd "$folder"/pair_kb-*/ && "$bin/python" -m hatchling build -t wheel -d "$folder/again" >/dev/null 2>&1)
listing='import sys, zipfile; print(*sorted(name for name in zipfile.ZipFile(sys.argv[1]).namelist()), sep="\n")'
"$bin/python" -c "$listing" "${wheels[0]}" >"$folder/first"
"$bin/python" -c "$listing" "$folder"/again/*.whl >"$folder/second"
cmp "$folder/first" "$folder/second"
for file in pair/app/ui/index.html pair/app/http/descriptions.json pair/py.typed; do
  grep -qx "$file" "$folder/first" || { echo "Cannot find $file in the wheel." >&2; exit 1; }
done

"$bin/uv" venv --no-config --quiet --python "$bin/python" "$folder/venv"
"$bin/uv" pip install --no-config --quiet --python "$folder/venv/bin/python" --require-hashes -r "$root/requirements.lock"
"$bin/uv" pip install --no-config --quiet --python "$folder/venv/bin/python" --no-deps "${wheels[0]}"
pair=$folder/venv/bin/pair
mkdir -p "$folder/home" "$folder/notes" "$folder/work"
printf '# Meals\n\nLunch is served at one o'"'"'clock in the garden.\n' >"$folder/notes/meals.md"
cd "$folder/work"
export HOME="$folder/home"
unset PYTHONPATH
"$pair" install --source "$folder/notes" >/dev/null 2>&1
"$pair" sync >/dev/null 2>&1
answer=$("$pair" ask "When is lunch served?" 2>&1)
grep -q "one o'clock" <<<"$answer" || { echo "Cannot find the answer in: $answer" >&2; exit 1; }

coproc LOG { PAIR__SERVER__PORT=0 PAIR__SERVER__LOG_FORMAT=json exec "$pair" serve 2>&1 >/dev/null; }
server=$LOG_PID
address=""
while [ -z "$address" ] && read -r -t 120 line <&"${LOG[0]}"; do
  address=$(sed -n 's/.*"address": *"\([^"]*\)".*/\1/p' <<<"$line")
done
[ -n "$address" ] || { echo "Cannot start the server." >&2; exit 1; }
curl --silent --fail --max-time 60 "$address/" | grep -qi "<!doctype html"
echo "dist: the wheel installs, syncs, answers and serves its page; the source distribution builds the same wheel."
