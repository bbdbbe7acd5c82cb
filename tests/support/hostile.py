"""Archives that must be refused. They are built byte by byte, because no normal tool writes them."""

import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from support.kbs import zip_of

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
UTF8_FLAG = 0x800
REGULAR, FOLDER, LINK, CHARACTER, BLOCK, FIFO, SOCKET = (
    0o100644,
    0o040755,
    0o120777,
    0o020666,
    0o060666,
    0o010666,
    0o140777,
)
MEBIBYTE = 1024 * 1024
UNSET_32 = 0xFFFFFFFF
UNSET_16 = 0xFFFF

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_LOCATOR = struct.Struct("<4sLQL")


# ── a zip writer without checks ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Entry:
    """An entry of an archive. Attributes that are None get valid values."""

    name: str | bytes
    content: bytes = b"# page\n"
    method: int = STORED
    mode: int = REGULAR
    flags: int = UTF8_FLAG
    needs_version: int = 20
    packed: bytes | None = None
    crc: int | None = None
    size: int | None = None
    packed_size: int | None = None
    offset: int | None = None
    extra: bytes = b""
    local_name: bytes | None = None
    local_signature: bytes = b"PK\x03\x04"

    @property
    def raw_name(self) -> bytes:
        return self.name.encode() if isinstance(self.name, str) else self.name

    @property
    def raw_packed(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return deflated(self.content) if self.method == DEFLATED else self.content

    def _declared(self) -> tuple[int, int, int]:
        packed = self.raw_packed
        return (
            zlib.crc32(self.content) if self.crc is None else self.crc,
            len(packed) if self.packed_size is None else self.packed_size,
            len(self.content) if self.size is None else self.size,
        )

    def local(self) -> bytes:
        name = self.raw_name if self.local_name is None else self.local_name
        fields = (self.needs_version, self.flags, self.method, 0, 0x21, *self._declared(), len(name), 0)
        return _LOCAL.pack(self.local_signature, *fields) + name + self.raw_packed

    def central(self, offset: int) -> bytes:
        told_offset = offset if self.offset is None else self.offset
        made_by = 3 << 8 | 20
        fields = (made_by, self.needs_version, self.flags, self.method, 0, 0x21, *self._declared())
        lengths = (len(self.raw_name), len(self.extra), 0, 0, 0)
        return (
            _CENTRAL.pack(b"PK\x01\x02", *fields, *lengths, self.mode << 16, told_offset) + self.raw_name + self.extra
        )


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def zip_from(*entries: Entry) -> bytes:
    body, directory = b"", b""
    for entry in entries:
        directory += entry.central(len(body))
        body += entry.local()
    return body + with_end(directory, len(entries), len(body))


def with_end(
    directory: bytes, count: int, offset: int, *, directory_bytes: int | None = None, comment: bytes = b""
) -> bytes:
    told_bytes = len(directory) if directory_bytes is None else directory_bytes
    return directory + _END.pack(b"PK\x05\x06", 0, 0, count, count, told_bytes, offset, len(comment)) + comment


def with_end64(
    directory: bytes, count: int, offset: int, *, record_offset: int | None = None, end: tuple[int, int] | None = None
) -> bytes:
    """Return an archive with a zip64 end record.

    `record_offset`: the target of the locator. `end`: count and size in the old end record.
    """
    told_count, told_bytes = (UNSET_16, UNSET_32) if end is None else end
    record = _END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), offset)
    told_offset = offset + len(directory) if record_offset is None else record_offset
    locator = _END64_LOCATOR.pack(b"PK\x06\x07", 0, told_offset, 1)
    return directory + record + locator + with_end(b"", told_count, offset, directory_bytes=told_bytes)


def small_end64_record() -> bytes:
    """Return the zip64 record of a small directory, as a false target for a locator."""
    return _END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, 47, 0)


def zip64_extra(*sizes: int) -> bytes:
    return struct.pack(f"<HH{len(sizes)}Q", 1, 8 * len(sizes), *sizes)


def crowded_directory(count: int) -> bytes:
    """Return a directory that repeats one entry of minimum length."""
    return Entry("a", b"").central(0) * count


# ── bombs ──────────────────────────────────────────────────────────────────────────────────────────


def zeros_deflated(mebibytes: int) -> bytes:
    """Return deflated zeros quickly: after a full flush, the same bytes may be repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(MEBIBYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * mebibytes + packer.flush()


def bomb(mebibytes: int, *, told_bytes: int | None = None) -> bytes:
    size = mebibytes * MEBIBYTE if told_bytes is None else told_bytes
    packed = zeros_deflated(mebibytes)
    if size < UNSET_32:
        return zip_from(Entry("zeros.bin", b"", DEFLATED, packed=packed, size=size))
    large = Entry("zeros.bin", b"", DEFLATED, packed=packed, size=UNSET_32, extra=zip64_extra(size))
    return zip_from(large)


def nested_bomb() -> bytes:
    page = bytes(MEBIBYTE // 2)
    inner = zip_of({f"{number}.md": page for number in range(2)})
    middle = zip_of({f"{number}.zip": inner * 40 for number in range(40)}, STORED)
    return zip_of({"inner.zip": middle})


def shared_header() -> bytes:
    """Return an archive whose entries all share the same bytes under different names."""
    first = Entry("0.md", random.Random(1).randbytes(100_000))
    directory = first.central(0)
    for number in range(1, 50):
        directory += Entry(f"{number}.md", first.content, offset=0).central(0)
    return first.local() + with_end(directory, 50, len(first.local()))


def quoted_headers() -> bytes:
    """Return a zip bomb by David Fifield's method: each entry unpacks to the header of the next one and its content."""
    content = random.Random(2).randbytes(60_000)
    body = Entry("50.md", content, DEFLATED).local()
    packed_bytes = len(Entry("50.md", content, DEFLATED).raw_packed)
    told = [(50, content, packed_bytes, len(body))]
    for number in range(49, 0, -1):
        header = body[: len(body) - packed_bytes]
        content = header + content
        quote = struct.pack("<BHH", 0, len(header), len(header) ^ 0xFFFF)
        packed = quote + body
        packed_bytes = len(packed)
        body = Entry(f"{number:02}.md", content, DEFLATED, packed=packed).local()
        told.append((number, content, packed_bytes, len(body)))
    directory = b"".join(
        Entry(f"{number:02}.md", content, DEFLATED, packed=b"", packed_size=packed_bytes).central(len(body) - distance)
        for number, content, packed_bytes, distance in told
    )
    return body + with_end(directory, len(told), len(body))


# ── damage ─────────────────────────────────────────────────────────────────────────────────────────


def sound_zip() -> bytes:
    return zip_from(Entry("a.md", b"# a\n" * 100, DEFLATED), Entry("b.md", b"# b\n"))


def cut(keep: Callable[[bytes], bytes]) -> bytes:
    return keep(sound_zip())


def with_byte_changed(archive: bytes, at: int) -> bytes:
    return archive[:at] + bytes([archive[at] ^ 0xFF]) + archive[at + 1 :]


# ── the corpus ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Hostile:
    """An archive to refuse. `reason`: a part of the expected error, so that it is refused for the right reason."""

    id: str
    reason: str
    build: Callable[[], bytes]


def _named(id: str, reason: str, *names: str | bytes) -> Hostile:
    return Hostile(id, reason, lambda: zip_from(*(_plain(name) for name in names)))


def _plain(name: str | bytes) -> Entry:
    is_folder = Entry(name).raw_name.endswith(b"/")
    return Entry(name, b"", mode=FOLDER) if is_folder else Entry(name)


def _with(id: str, reason: str, *entries: Entry) -> Hostile:
    return Hostile(id, reason, lambda: zip_from(*entries))


_OUT, _ABSOLUTE, _BACKSLASH = "leads out of the archive", "absolute path", "backslash"
_CONTROL, _EMPTY, _ENDING, _RESERVED = "control character", "empty part", "ends in a dot or a space", "on Windows"
_SPECIAL, _TWICE, _ALIKE, _BOTH = "special file", "one name", "case or accents", "name of a folder"
_RATIO, _TOTAL, _SHARED, _CROWD = "times its size", "it unpacks to", "share the same bytes", "more than 100000"
_NOT_WHOLE, _DAMAGED, _OWN = "not a complete zip", "damaged entry", "reserved for pair"
_VERSIONED = "belongs to version control"
_LENGTH, _OUTSIDE = "differs from the declared one", "outside the archive"

NAMES: Sequence[Hostile] = (
    _named("parent-folder", _OUT, "../evil"),
    _named("parent-folder-deep-inside", _OUT, "a/../../evil"),
    _named("parent-folder-that-stays-inside", _OUT, "a/../b.md"),
    _named("parent-folder-at-the-end", _OUT, "a/.."),
    _named("parent-folder-as-folder", _OUT, "../evil/"),
    _named("after-a-good-entry", _OUT, "good.md", "../evil"),
    _named("absolute", _ABSOLUTE, "/etc/x"),
    _named("absolute-twice", _ABSOLUTE, "//host/x"),
    _named("drive-backslash", _ABSOLUTE, "C:\\x"),
    _named("drive-slash", _ABSOLUTE, "c:/x"),
    _named("drive-relative", _ABSOLUTE, "C:x"),
    _named("unc", _ABSOLUTE, "\\\\host\\x"),
    _named("backslash-parent", _BACKSLASH, "a\\..\\b"),
    _named("backslash-plain", _BACKSLASH, "a\\b.md"),
    _named("nul-byte", _CONTROL, b"a.md\0.exe"),
    _named("nul-byte-first", _CONTROL, b"\0a.md"),
    _named("nul-byte-hides-parent", _CONTROL, b"ok.md\0/../../evil"),
    _named("escape-character", _CONTROL, "a\x1b[2J.md"),
    _named("newline", _CONTROL, "a\nb.md"),
    _named("delete-character", _CONTROL, "a\x7f.md"),
    _named("empty-name", _EMPTY, b""),
    _named("slash-only", _EMPTY, "/"),
    _named("dot-first-and-out", _OUT, "./../evil"),
    _named("dot-between", _EMPTY, "a/./b.md"),
    _named("double-slash", _EMPTY, "a//b.md"),
    _named("double-slash-at-the-end", _EMPTY, "a//"),
    _named("trailing-dot", _ENDING, "a.md."),
    _named("trailing-space", _ENDING, "a.md "),
    _named("trailing-dot-of-folder", _ENDING, "a./b.md"),
    _named("three-dots", _ENDING, "a/.../b.md"),
    _named("device-con", _RESERVED, "CON"),
    _named("device-nul-with-suffix", _RESERVED, "nul.txt"),
    _named("device-com1-with-suffix", _RESERVED, "COM1.md"),
    _named("device-as-folder", _RESERVED, "docs/aux/a.md"),
    _named("device-superscript", _RESERVED, "lpt¹.md"),
    _named("device-with-space", _RESERVED, "con .txt"),
    _named("long-name", "too long", "a" * 256),
    _named("long-name-in-bytes", "too long", "é" * 130),
    _named("long-path", "too long", "/".join(["a" * 200] * 21)),
    _named("own-record", _OWN, ".pair-install.jsonl"),
    _named("own-cache-entry", _OWN, ".pair-entry.json"),
    _named("own-record-as-folder", _OWN, ".pair-install.jsonl/a.md"),
    _named("own-cache-entry-as-empty-folder", _OWN, ".pair-entry.json/", "a.md"),
    _named("git-config", _VERSIONED, "a.md", ".git/config"),
    _named("git-deep-inside", _VERSIONED, "a/b/.git/config"),
    _named("git-as-file", _VERSIONED, "a/.git"),
    _named("git-as-empty-folder", _VERSIONED, ".git/", "a.md"),
    _named("git-upper-case", _VERSIONED, ".Git/config"),
    _named("git-with-invisible-character", _VERSIONED, ".g\u200cit/config"),
    _named("git-full-width", _VERSIONED, ".\uff47it/config"),
    _named("git-with-dot-at-the-end", _VERSIONED, ".git./config"),
    _named("git-short-name", _VERSIONED, "git~1/config"),
    _named("git-stream", _VERSIONED, ".git::$INDEX_ALLOCATION/config"),
    _named("mercurial", _VERSIONED, ".hg/hgrc"),
    _named("subversion", _VERSIONED, "docs/.svn/entries"),
    _named("bazaar", _VERSIONED, ".bzr/branch"),
    _named("darcs", _VERSIONED, "_darcs/prefs"),
    _named("jujutsu", _VERSIONED, ".jj/repo"),
    _named("cvs", _VERSIONED, "CVS/Root"),
    _named("bare-git-repository", "for a repository", "a/HEAD", "a/config", "a/objects/x", "a/refs/x"),
    _named("nested-folders", "too many folders", "/".join(["a"] * 1990)),
    _named("name-not-utf-8", _NOT_WHOLE, b"a\xff\xfe.md"),
)

KINDS: Sequence[Hostile] = (
    _with("link", "link", Entry("passwords", b"/etc/passwd", mode=LINK)),
    _with("link-then-file-through-it", "link", Entry("out", b"/etc", mode=LINK), Entry("out/x.md")),
    _with("link-after-file", "link", Entry("a.md"), Entry("out", b"..", mode=LINK)),
    _with("link-as-folder", "link", Entry("out/", b"", mode=LINK)),
    _with("character-device", _SPECIAL, Entry("null", b"", mode=CHARACTER)),
    _with("block-device", _SPECIAL, Entry("disk", b"", mode=BLOCK)),
    _with("fifo", _SPECIAL, Entry("pipe", b"", mode=FIFO)),
    _with("socket", _SPECIAL, Entry("socket", b"", mode=SOCKET)),
    _with("unknown-kind", _SPECIAL, Entry("door", b"", mode=0o150000)),
    _with("folder-mode-on-a-file", "without a slash", Entry("a.md", mode=FOLDER)),
    _with("folder-with-content", "folder with content", Entry("a/", b"hidden", mode=FOLDER)),
    _with("encrypted", "encrypted", Entry("a.md", flags=UTF8_FLAG | 0x1)),
    _with("strongly-encrypted", "encrypted", Entry("a.md", flags=UTF8_FLAG | 0x41)),
    *(
        _with(f"compression-{name}", "unknown compression", Entry("a.md", method=method))
        for name, method in {"implode": 6, "deflate64": 9, "bzip2": 12, "lzma": 14, "xz": 95, "aes": 99}.items()
    ),
)

COLLISIONS: Sequence[Hostile] = (
    _named("same-name-twice", _TWICE, "a.md", "a.md"),
    _named("same-folder-twice", _TWICE, "a/", "a/"),
    _named("file-and-folder-of-one-name", _TWICE, "a", "a/"),
    _named("case", _ALIKE, "A.md", "a.md"),
    _named("case-of-folders", _ALIKE, "Docs/a.md", "docs/b.md"),
    _named("case-beyond-ascii", _ALIKE, "ÉTÉ.md", "été.md"),
    _named("sharp-s", _ALIKE, "straße.md", "STRASSE.md"),
    _named("composed-and-decomposed", _ALIKE, "caf\u00e9.md", "cafe\u0301.md"),
    _named("composed-and-decomposed-folders", _ALIKE, "caf\u00e9/a.md", "cafe\u0301/b.md"),
    _named("file-then-folder", _BOTH, "a", "a/b.md"),
    _named("folder-then-file", _BOTH, "a/b.md", "a"),
    _named("file-then-folder-far-below", _BOTH, "a/b", "a/b/c/d.md"),
)

BOMBS: Sequence[Hostile] = (
    _with("ten-gigabytes-declared", _TOTAL, Entry("a.md", size=UNSET_32, extra=zip64_extra(10 * 10**9))),
    _with("four-gigabytes-declared-in-parts", _TOTAL, *(Entry(f"{n}.md", size=UNSET_32 - 1) for n in range(2))),
    Hostile("ten-gigabytes-in-truth", _TOTAL, lambda: bomb(10 * 1024)),
    Hostile("ten-gigabytes-declared-as-a-kilobyte", _DAMAGED, lambda: bomb(10 * 1024, told_bytes=1000)),
    Hostile("ratio", _RATIO, lambda: bomb(64)),
    Hostile(
        "ratio-of-one-among-many",
        _RATIO,
        lambda: zip_from(
            Entry("noise.bin", random.Random(3).randbytes(MEBIBYTE)), Entry("zeros.bin", bytes(2 * MEBIBYTE), DEFLATED)
        ),
    ),
    Hostile("ratio-of-many-small", _RATIO, lambda: zip_of({f"{n}.md": bytes(MEBIBYTE // 2) for n in range(8)})),
    Hostile("nested", _RATIO, nested_bomb),
    Hostile("entries-that-share-one-header", _SHARED, shared_header),
    Hostile("entries-that-quote-each-other", _SHARED, quoted_headers),
    Hostile("million-entries", _CROWD, lambda: with_end64(crowded_directory(1_000_000), 1_000_000, 0)),
    Hostile("million-entries-counted-as-one", _CROWD, lambda: with_end(crowded_directory(1_000_000), 1, 0)),
    Hostile(
        "million-entries-hidden-in-zip64",
        _CROWD,
        lambda: with_end64(crowded_directory(1_000_000), 1_000_000, 0, end=(1, 47)),
    ),
    Hostile(
        "directory-of-huge-entries",
        "its directory takes",
        lambda: with_end((Entry("a", b"", extra=bytes(60_000)).central(0)) * 900, 900, 0),
    ),
)

DAMAGE: Sequence[Hostile] = (
    Hostile("empty-file", _NOT_WHOLE, lambda: b""),
    Hostile("one-byte", _NOT_WHOLE, lambda: b"P"),
    Hostile("text", _NOT_WHOLE, lambda: b"# not an archive\n" * 1000),
    Hostile("web-page", _NOT_WHOLE, lambda: b"<!doctype html><title>Sign in</title>"),
    Hostile("gzip", _NOT_WHOLE, lambda: zlib.compress(b"# page\n", wbits=31)),
    Hostile("cut-in-the-local-header", _NOT_WHOLE, lambda: cut(lambda whole: whole[:10])),
    Hostile("cut-in-the-content", _NOT_WHOLE, lambda: cut(lambda whole: whole[:60])),
    Hostile("cut-in-the-directory", _NOT_WHOLE, lambda: cut(lambda whole: whole[:-60])),
    Hostile("cut-in-the-end-record", _NOT_WHOLE, lambda: cut(lambda whole: whole[:-10])),
    Hostile("cut-by-one-byte", _NOT_WHOLE, lambda: cut(lambda whole: whole[:-1])),
    Hostile("cut-at-the-front", "", lambda: cut(lambda whole: whole[7:])),
    Hostile("only-the-end-record", _NOT_WHOLE, lambda: cut(lambda whole: whole[-22:])),
    Hostile("hole-in-the-middle", "", lambda: cut(lambda whole: whole[:40] + whole[50:])),
    _with("wrong-crc", _DAMAGED, Entry("a.md", crc=1)),
    _with("wrong-crc-after-a-good-entry", _DAMAGED, Entry("good.md"), Entry("a.md", crc=1)),
    _with("broken-deflate-stream", _DAMAGED, Entry("a.md", b"# page\n", DEFLATED, packed=b"\xff" * 9)),
    _with(
        "deflate-stream-cut-off", _DAMAGED, Entry("a.md", b"# a\n" * 99, DEFLATED, packed=deflated(b"# a\n" * 99)[:-3])
    ),
    _with("less-content-than-declared", _LENGTH, Entry("a.md", b"# page\n", size=100)),
    _with("less-deflated-content-than-declared", _LENGTH, Entry("a.md", b"# page\n", DEFLATED, size=100)),
    _with("more-packed-than-there-is", _DAMAGED, Entry("a.md", size=5_000, packed_size=5_000)),
    _with("local-name-differs", _DAMAGED, Entry("a.md", local_name=b"b.md")),
    _with("local-name-leads-out", _DAMAGED, Entry("a.md", local_name=b"../a.md")),
    _with("local-name-not-utf-8", _DAMAGED, Entry("a.md", local_name=b"\xff\xfe.md")),
    _with("local-header-missing", _DAMAGED, Entry("a.md", local_signature=b"XX\x03\x04")),
    _with("local-header-beyond-the-end", _OUTSIDE, Entry("a.md", offset=1_000_000)),
    _with("local-header-beyond-the-disk", _OUTSIDE, Entry("a.md", offset=UNSET_32, extra=zip64_extra(2**62))),
    _with("local-header-beyond-all-numbers", _OUTSIDE, Entry("a.md", offset=UNSET_32, extra=zip64_extra(2**64 - 1))),
    _with("zip64-size-of-everything", _TOTAL, Entry("a.md", size=UNSET_32, extra=zip64_extra(2**64 - 1))),
    _with("zip64-size-missing", _NOT_WHOLE, Entry("a.md", size=UNSET_32, extra=zip64_extra())),
    _with("extra-field-cut-off", _NOT_WHOLE, Entry("a.md", extra=b"\x01\x00\xff\x00")),
    _with("needs-a-future-version", _NOT_WHOLE, Entry("a.md", needs_version=99)),
    Hostile("zip64-record-elsewhere", _DAMAGED, lambda: with_end64(Entry("a.md").central(0), 1, 0, record_offset=10)),
    Hostile(
        "zip64-record-beyond-the-disk",
        _DAMAGED,
        lambda: with_end64(Entry("a.md").central(0), 1, 0, record_offset=2**62),
    ),
    Hostile(
        "zip64-record-beyond-all-numbers",
        _DAMAGED,
        lambda: with_end64(Entry("a.md").central(0), 1, 0, record_offset=2**64 - 1),
    ),
    Hostile(
        "directory-larger-than-the-archive",
        _NOT_WHOLE,
        lambda: with_end(Entry("a.md").central(0), 1, 0, directory_bytes=1_000_000),
    ),
    Hostile(
        "directory-smaller-than-it-is", _NOT_WHOLE, lambda: with_end(Entry("a.md").central(0), 1, 0, directory_bytes=20)
    ),
    Hostile("directory-offset-beyond-the-end", "", lambda: with_end(Entry("a.md").central(0), 1, UNSET_32 - 1)),
    Hostile(
        "directory-without-its-signature",
        _NOT_WHOLE,
        lambda: with_end(with_byte_changed(Entry("a.md").central(0), 0), 1, 0),
    ),
)

CORPUS: Sequence[Hostile] = (*NAMES, *KINDS, *COLLISIONS, *BOMBS, *DAMAGE)
