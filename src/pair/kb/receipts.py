"""Receipts: an answer with everything that proves it, and the check of a receipt without a network.

The retrieval of a stored answer is repeated on the version that the answer names, or else on the current one.

A receipt is a JSON file in one canonical form. It holds the question, the answer, the cited passages and the retrieval
that found them, with a digest of each part. A signature of minisign may cover all of it.

Invariants
    A receipt whose parts, digests, signature or layout were changed is refused, and the report names the part.
    A check reads the package or the KB only. It asks no model.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pair import __version__, errors, files
from pair.clock import Clock, SystemClock, to_timestamp
from pair.kb.answer_tests import open_folder
from pair.kb.open import DEFAULT_KB, open_kb
from pair.kb.package_index import open_package
from pair.librarians.citations import RETRIEVAL_KEY, FoundPassage, Retrieval, hash_passage
from pair.librarians.kb_librarian import OUTCOME_KEY, PASSAGES_TITLE, QUOTATION
from pair.librarians.questions import is_small_talk
from pair.packages import record
from pair.packages.package import read_manifest, verify
from pair.settings import Settings
from pair.values import SearchOptions, hash_text, parse_json

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase
    from pair.librarians.contract import Response
    from pair.packages.signing import SecretKey, TrustedKeys

FORMAT = "pair-receipt-1"
_MOST_BYTES = 64_000_000
_MARK = re.compile(r" ?\[(\d+)\]$")
_PARTS = ("format", "created", "question", "answer", "passages", "retrieval", "package")


class ReceiptPassage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source of the answer: the passage `text` is `[start:end]` of a document."""

    document_id: str
    title: str
    start: int
    end: int
    sha256: str
    text: str


class PackageOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The package that the KB was installed from."""

    name: str
    version: str
    content_sha256: str
    signed_by: str


class ReceiptAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    outcome: str
    method: str
    confidence: float


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    created: dict[str, str]
    """When and by which version of pair."""
    question: str
    answer: ReceiptAnswer
    passages: tuple[ReceiptPassage, ...]
    """The sources of the answer: `[1]` is the first."""
    retrieval: Retrieval
    """KB, version, commit, embedder, and every passage that was found."""
    package: PackageOrigin | None
    digests: dict[str, str]
    """The SHA-256 of each part in canonical JSON, and of the signature if there is one."""
    signature: str
    """A signature of minisign over the receipt without signature and its digest; empty if unsigned."""

    def to_bytes(self) -> bytes:
        """Return the canonical form."""
        value = msgspec.to_builtins(self)
        return (json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    def compute_digests(self) -> dict[str, str]:
        value = msgspec.to_builtins(self)
        return {
            part: hashlib.sha256(json.dumps(value[part], sort_keys=True, allow_nan=False).encode()).hexdigest()
            for part in (*_PARTS, "signature")
            if value[part] != ""
        }

    def unsigned_bytes(self) -> bytes:
        digests = {part: digest for part, digest in self.digests.items() if part != "signature"}
        return msgspec.structs.replace(self, digests=digests, signature="").to_bytes()


# ── making ─────────────────────────────────────────────────────────────────────────────────────────


def make_receipt(question: str, response: "Response", settings: Settings, clock: Clock) -> Receipt:
    """Return the unsigned receipt of an answer. Raises E252 for an answer that did not come from one KB."""
    recorded = response.to_json().get("metadata", {}).get(RETRIEVAL_KEY)
    if response.error is not None or not isinstance(recorded, list) or len(recorded) != 1:
        raise errors.no_receipt("it does not come from one knowledge base")
    retrieval = Retrieval.from_json(recorded[0])
    if ":" in retrieval.kb_id:
        raise errors.no_receipt(f"it comes from another server: {retrieval.kb_id}")
    passages = []
    for source in response.sources:
        place = source.provenance
        if place is None:
            raise errors.no_receipt("a source has no place in a document")
        cited = (place.document_id, source.name, place.start, place.end, hash_text(source.quote), source.quote)
        passages.append(ReceiptPassage(*cited))
    receipt = Receipt(
        format=FORMAT,
        created={"at": to_timestamp(clock.now()), "by": f"pair {__version__}"},
        question=question,
        answer=ReceiptAnswer(
            response.answer or "",
            str(response.metadata.get(OUTCOME_KEY, "")),
            str(response.metadata.get("method", "")),
            response.confidence or 0.0,
        ),
        passages=tuple(passages),
        retrieval=retrieval,
        package=_find_package(settings, retrieval.kb_id),
        digests={},
        signature="",
    )
    return msgspec.structs.replace(receipt, digests=receipt.compute_digests())


def _find_package(settings: Settings, kb_id: str) -> PackageOrigin | None:
    """Return the package in the sources folder, if that is the folder of this KB."""
    if kb_id != DEFAULT_KB:
        return None
    header = record.read_header(files.expand_path(settings.kb.sources_dir))
    if header is None:
        return None
    return PackageOrigin(header.name, header.version, header.content_sha256, header.signed_by or "")


def make_signed_receipt(
    question: str,
    response: "Response",
    settings: Settings,
    key: Path | None = None,
    ask_password: Callable[[], str] = lambda: "",
) -> bytes:
    """Return the receipt of an answer as the content of a file, signed if there is a key.

    `key`: the secret key; None for that of the settings. Raises E024, E252.
    """
    receipt = make_receipt(question, response, settings, SystemClock())
    secret = _read_key(settings, key, ask_password)
    return (receipt if secret is None else sign_receipt(receipt, secret)).to_bytes()


def _read_key(settings: Settings, key: Path | None, ask_password: Callable[[], str]) -> "SecretKey | None":
    """Return the key that signs receipts: the given one, else that of the settings, if there is one. Raises E024."""
    named = key or (files.expand_path(settings.librarians.receipt_key) if settings.librarians.receipt_key else None)
    if named is None:
        return None
    from pair.packages.signing import read_secret_key  # noqa: PLC0415 - loads cryptography

    return read_secret_key(named, lambda: settings.sign_password or ask_password())


def sign_receipt(receipt: Receipt, key: "SecretKey") -> Receipt:
    from pair.packages.signing import sign_digest  # noqa: PLC0415 - loads cryptography

    comment = f"receipt of {receipt.retrieval.kb_id} version {receipt.retrieval.manifest_version}"
    signature = sign_digest(hashlib.blake2b(receipt.unsigned_bytes()).digest(), key, comment)
    signed = msgspec.structs.replace(receipt, signature=signature.decode())
    return msgspec.structs.replace(signed, digests=signed.compute_digests())


# ── checking ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CheckedPart:
    part: str
    is_ok: bool | None
    """None if it could not be checked."""
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"part": self.part, "ok": self.is_ok, "text": self.text}


def read_receipt(path: Path) -> tuple[Receipt, bytes]:
    """Return a receipt and its bytes. Raises E251, E010."""
    content = _read(path, errors.receipt_unreadable)
    try:
        receipt = parse_json(content, Receipt)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise errors.receipt_unreadable(str(path), f"it is not a receipt: {fault}") from fault
    if receipt.format != FORMAT:
        raise errors.receipt_unreadable(str(path), f"its format is {receipt.format!r:.40}, not {FORMAT}")
    return receipt, content


def _read(path: Path, unreadable: Callable[[str, str], errors.PairError]) -> bytes:
    with files.storage_errors():
        if not path.is_file():
            raise unreadable(str(path), "there is no such file")
        if path.stat().st_size > _MOST_BYTES:
            raise unreadable(str(path), "it is too large")
        return path.read_bytes()


def check_receipt(
    receipt: Receipt, content: bytes, settings: Settings, *, package: Path | None, trusted: "TrustedKeys | None"
) -> list[CheckedPart]:
    """Check a receipt against its own digests and signature, and against a package or the KB that it names.

    A receipt that was changed is not checked further. Raises the errors of opening the package or KB.
    """
    digests = _check_digests(receipt, content)
    checked = [digests, _check_signature(receipt, trusted)]
    if not digests.is_ok:
        return checked
    if package is not None:
        checked.append(_check_package(receipt, package, settings))
    opened = open_folder(package, settings) if package is not None else open_recorded(settings, receipt.retrieval)
    with opened as kb:
        checked += _check_passages(receipt, kb)
        checked.append(_check_retrieval(receipt, kb))
    return [*checked, *_check_quotations(receipt)]


def _check_digests(receipt: Receipt, content: bytes) -> CheckedPart:
    actual, canonical = receipt.compute_digests(), receipt.to_bytes()
    if changed := sorted({*actual.items()} ^ {*receipt.digests.items()}):
        parts = ", ".join(dict.fromkeys(part for part, _ in changed))
        return CheckedPart("digests", False, f"changed since the receipt was made: {parts}")
    if canonical != content:
        pairs = enumerate(zip(canonical.splitlines(keepends=True), content.splitlines(keepends=True), strict=False), 1)
        line = next((number for number, (ours, given) in pairs if ours != given), len(canonical.splitlines()))
        return CheckedPart("digests", False, f"the file is not in its canonical form, from line {line} on")
    return CheckedPart("digests", True, f"all {len(actual)} parts have their digests")


def _check_signature(receipt: Receipt, trusted: "TrustedKeys | None") -> CheckedPart:
    signature = receipt.signature.encode() or None
    if trusted is None:
        return CheckedPart("signature", None, "signed, but no key is trusted" if signature else "unsigned")
    try:
        signer = trusted.signer_of(receipt.unsigned_bytes(), signature, "the receipt")
    except errors.PairError as fault:
        return CheckedPart("signature", False, _first_line(fault))
    return CheckedPart("signature", *((None, "unsigned") if signer is None else (True, f"signed by {signer.key_id}")))


def _check_package(receipt: Receipt, path: Path, settings: Settings) -> CheckedPart:
    """Verify a package, and compare its content with the one that the receipt names."""
    origin = receipt.package
    if origin is None or not path.is_file():
        return CheckedPart("package", None, "the receipt names no package" if origin is None else "a folder")
    try:
        verify(path, settings.sources, None)
        manifest = read_manifest(path, settings.sources)
    except errors.PairError as fault:
        return CheckedPart("package", False, _first_line(fault))
    named, found = f"{origin.name} {origin.version}", f"{manifest.name} {manifest.version}" if manifest else "unnamed"
    if manifest is None or manifest.content_checksum != origin.content_sha256:
        return CheckedPart("package", False, f"{path.name} is {found}; the answer came from different content: {named}")
    return CheckedPart("package", True, f"{path.name} is {named}")


def _first_line(fault: errors.PairError) -> str:
    return fault.message.split("\n")[0]


def _check_passages(receipt: Receipt, kb: "KnowledgeBase") -> Iterator[CheckedPart]:
    faults = []
    for number, passage in enumerate(receipt.passages, 1):
        place = f"[{number}] {passage.document_id} {passage.start}-{passage.end}"
        try:
            document = kb.document(passage.document_id)
        except errors.NotFoundError:
            faults.append(f"{place}: there is no such document")
            continue
        text = document.text[passage.start : passage.end]
        if passage.title != (document.title or document.id):
            faults.append(f"{place}: the document has another title")
        elif text != passage.text or hash_text(text) != passage.sha256:
            faults.append(f"{place}: the document has another text there")
    yield from (CheckedPart("passages", False, fault) for fault in faults)
    if not faults:
        yield CheckedPart(
            "passages", True, f"{len(receipt.passages)} of {len(receipt.passages)} cited passages are in the documents"
        )


def _check_retrieval(receipt: Receipt, kb: "KnowledgeBase") -> CheckedPart:
    question, query = receipt.question.strip(), receipt.retrieval.query.strip()
    # A follow-up question is searched with words of the question before it.
    if not (f"{query} ".startswith(f"{question} ") or is_small_talk(question)):
        return CheckedPart("retrieval", False, f"the search was for another question: {query[:80]!r}")
    places = {passage.place for passage in receipt.retrieval.passages}
    for number, cited in enumerate(receipt.passages, 1):
        if (cited.document_id, cited.start, cited.end, hash_passage(cited.text)) not in places:
            return CheckedPart("retrieval", False, f"the search did not find the cited passage [{number}]")
    try:
        report = repeat(kb, receipt.retrieval)
    except errors.PairError as fault:
        if fault.code != errors.EMBEDDER_DIFFERS:
            raise
        return CheckedPart("retrieval", False, _first_line(fault))
    if report.is_same:
        return CheckedPart("retrieval", True, f"the search finds the same {len(report.passages)} passages again")
    states = [again.state for again in report.passages if again.state != "same"]
    counts = ", ".join(f"{states.count(state)} {state.replace('_', ' ')}" for state in dict.fromkeys(states))
    new = f"{len(report.new)} new" if report.new else ""
    found = ", ".join(filter(None, [counts, new]))
    return CheckedPart("retrieval", False, f"the search finds different passages in version {report.version}: {found}")


def _check_quotations(receipt: Receipt) -> Iterator[CheckedPart]:
    """Compare every quoted block of the answer with the passage that it cites, and look for other text."""
    blocks = list(_list_quotations(receipt.answer.text))
    faults = []
    for block, number in blocks:
        passage = receipt.passages[number - 1].text if 0 < number <= len(receipt.passages) else ""
        if not _stands_in(block, passage):
            faults.append(f"[{number}] does not contain {block[:80]!r}")
    lines = [line for line in receipt.answer.text.splitlines() if line.strip() and not line.startswith(">")]
    if receipt.answer.method == QUOTATION:
        faults += [f"{line[:80]!r} is not a quotation" for line in lines if line != PASSAGES_TITLE]
    elif lines:
        yield CheckedPart("wording", None, "no document proves the lines that are not quotations")
    yield from (CheckedPart("quotations", False, fault) for fault in faults)
    if not faults:
        text = f"{len(blocks)} of {len(blocks)} quotations are word for word" if blocks else "the answer quotes nothing"
        yield CheckedPart("quotations", True if blocks else None, text)


def _list_quotations(answer: str) -> Iterator[tuple[str, int]]:
    """Yield each block of quoted lines with the number of its source."""
    lines: list[str] = []
    for line in answer.splitlines():
        if not line.startswith(">"):
            continue
        text = line.removeprefix(">").removeprefix(" ")
        if mark := _MARK.search(text):
            yield "\n".join([*lines, text[: mark.start()]]).strip(), int(mark[1])
            lines = []
        else:
            lines.append(text)
    if "".join(lines).strip():
        yield "\n".join(lines).strip(), 0


def _stands_in(block: str, passage: str) -> bool:
    """Return whether all lines of a block stand in the passage, in order, apart from line breaks."""
    plain, place = " ".join(passage.split()), 0
    for line in block.splitlines():
        words = " ".join(line.split())
        found = plain.find(words, place)
        if found < 0:
            return False
        place = found + len(words)
    return True


def describe_check(receipt: Receipt, checked: Sequence[CheckedPart]) -> dict[str, Any]:
    return {
        "holds": all(part.is_ok is not False for part in checked),
        "question": receipt.question,
        "kb_id": receipt.retrieval.kb_id,
        "version": receipt.retrieval.manifest_version,
        "checks": [part.to_json() for part in checked],
    }


# ── repeated retrievals ────────────────────────────────────────────────────────────────────────────

State = Literal["same", "moved", "scored", "changed", "gone", "not_found"]
"""`moved`: at another rank. `scored`: at the same rank with another score. `changed`: its text changed. `gone`: its
document was deleted. `not_found`: it is unchanged, but other passages rank higher."""

_SCORE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class PassageAgain:
    """A passage of the answer, and its state now."""

    passage: FoundPassage
    rank: int
    state: State
    new_rank: int | None = None
    changed_in: int | None = None
    """The first version with another text at its place."""
    or_before: bool = False
    """Whether an earlier version that is not kept may have changed it."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {**self.passage.to_json(), "rank": self.rank, "state": self.state}
        if self.new_rank is not None:
            value["newRank"] = self.new_rank
        if self.changed_in is not None:
            value |= {"changedIn": self.changed_in, "orBefore": self.or_before}
        return value


@dataclass(frozen=True)
class ReproduceReport:
    """One repeated retrieval."""

    asked: Retrieval
    kb_id: str
    version: int
    is_recorded: bool
    """Whether `version` is the one that the answer names."""
    passages: tuple[PassageAgain, ...]
    new: tuple[tuple[int, FoundPassage], ...]
    """Additional passages, with their ranks."""

    @property
    def is_same(self) -> bool:
        return not self.new and all(passage.state == "same" for passage in self.passages)

    def to_json(self) -> dict[str, Any]:
        return {
            "kbId": self.kb_id,
            "recordedVersion": self.asked.manifest_version,
            "version": self.version,
            "isRecordedVersion": self.is_recorded,
            "query": self.asked.query,
            "isSame": self.is_same,
            "passages": [passage.to_json() for passage in self.passages],
            "new": [{**passage.to_json(), "rank": rank} for rank, passage in self.new],
        }


def read_answer(path: Path) -> tuple[Retrieval, ...]:
    """Return the retrievals of a stored answer. Raises E232, E233, E010."""
    content = _read(path, errors.answer_unreadable)
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise errors.answer_unreadable(str(path), "it is not JSON") from fault
    if not isinstance(value, dict) or not ({"answer", "error", "metadata"} & value.keys()):
        raise errors.answer_unreadable(str(path), "it has neither answer nor metadata")
    metadata = value.get("metadata", {})
    recorded = metadata.get(RETRIEVAL_KEY, []) if isinstance(metadata, dict) else None
    if not isinstance(recorded, list):
        raise errors.answer_unreadable(str(path), f"{RETRIEVAL_KEY} is not a list")
    if not recorded:
        raise errors.nothing_to_reproduce(str(path))
    try:
        return tuple(Retrieval.from_json(value) for value in recorded)
    except ValueError as fault:
        raise errors.answer_unreadable(str(path), f"{RETRIEVAL_KEY}: {fault}") from fault


def reproduce(
    settings: Settings, asked: Retrieval, *, kb_id: str | None, at: str | None, package: Path | None
) -> ReproduceReport:
    """Repeat a retrieval in the version that the answer names, unless another KB, version or package is given.

    Raises E201, E218 for a given version, E304, and the errors of a search.
    """
    opened = open_package(package, settings) if package is not None else open_recorded(settings, asked, kb_id, at)
    with opened as kb:
        return repeat(kb, asked)


def repeat(kb: "KnowledgeBase", asked: Retrieval) -> ReproduceReport:
    """Repeat a retrieval in an open KB."""
    weak = SearchOptions(allow_weak=True)  # as librarians search
    hits = kb.search(asked.query, limit=asked.limit, mode=asked.mode, explain=True, options=weak)
    again = {passage.place: (rank, passage) for rank, passage in enumerate(map(FoundPassage.of, hits), 1)}
    recorded = {passage.place for passage in asked.passages}
    first, last = asked.manifest_version, hits.manifest_version
    later = sorted({last, *(number for number in kb.versions.numbers() if first < number < last)})
    return ReproduceReport(
        asked,
        kb.kb_id,
        last,
        (last, hits.commit_id) == (first, asked.commit_id),
        tuple(
            _compare_ranks(passage, rank, *again[passage.place])
            if passage.place in again
            else _find_change(kb, passage, rank, first, later)
            for rank, passage in enumerate(asked.passages, 1)
        ),
        tuple(passage for place, passage in again.items() if place not in recorded),
    )


@contextlib.contextmanager
def open_recorded(
    settings: Settings, asked: Retrieval, kb_id: str | None = None, at: str | None = None
) -> "Iterator[KnowledgeBase]":
    """Open the version that an answer names if that is kept, else the current one. Raises E233."""
    kb_id = kb_id or asked.kb_id
    if ":" in kb_id:
        raise errors.reproduce_elsewhere(kb_id)
    if at is None:
        with open_kb(kb_id, settings=settings, at=asked.manifest_version) as then:
            version = None
            with contextlib.suppress(errors.NotFoundError):
                version = then.version()
            # Another store may have the same number.
            if version == (asked.manifest_version, asked.commit_id):
                yield then
                return
    with open_kb(kb_id, settings=settings, at=None if at == "current" else at) as kb:
        yield kb


def _compare_ranks(passage: FoundPassage, rank: int, new_rank: int, again: FoundPassage) -> PassageAgain:
    is_scored_same = abs(passage.score - again.score) <= _SCORE_TOLERANCE
    state: State = "moved" if rank != new_rank else "same" if is_scored_same else "scored"
    return PassageAgain(passage, rank, state, new_rank)


def _find_change(
    kb: "KnowledgeBase", passage: FoundPassage, rank: int, recorded: int, later: Sequence[int]
) -> PassageAgain:
    """Find the first version with another text at the place of a passage."""
    known = recorded
    for number in later:
        try:
            text = kb.versions.text_at(number, passage.document_id)
        except errors.NotFoundError:  # The version was deleted.
            continue
        if text is None or hash_passage(text[passage.start : passage.end]) != passage.sha256:
            state: State = "gone" if text is None else "changed"
            return PassageAgain(passage, rank, state, None, number, known < number - 1)
        known = number
    return PassageAgain(passage, rank, "not_found")
