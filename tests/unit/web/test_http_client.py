"""Bodies in every encoding, whole and byte by byte, within the size limit."""

import gzip
import itertools
import zlib
from collections.abc import Callable

import pytest

from pair.web.http_client import BodyError, unpack_body, unpacker_for

TEXT = b"The same sentence again and again. " * 50
BARE = zlib.compressobj(wbits=-zlib.MAX_WBITS)
PACKED = [
    pytest.param("", TEXT, id="plain"),
    pytest.param("identity", TEXT, id="identity"),
    pytest.param("gzip", gzip.compress(TEXT), id="gzip"),
    pytest.param(" X-Gzip ", gzip.compress(TEXT), id="old-name"),
    pytest.param("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]), id="two-members"),
    pytest.param("gzip", gzip.compress(TEXT) + bytes(512), id="padding"),
    pytest.param("deflate", zlib.compress(TEXT), id="deflate"),
    pytest.param("deflate", BARE.compress(TEXT) + BARE.flush(), id="bare-deflate"),
]


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize(("encoding", "packed"), PACKED)
def test_a_body_is_unpacked_however_it_is_cut(encoding: str, packed: bytes, step: int) -> None:
    unpacker = unpacker_for(encoding)
    assert unpacker is not None
    found = b"".join(unpacker.feed(packed[start : start + step], len(TEXT)) for start in range(0, len(packed), step))
    assert found == TEXT
    assert unpacker.is_complete()


@pytest.mark.parametrize(("encoding", "packed"), PACKED)
def test_a_body_is_cut_off_one_byte_beyond_the_limit(encoding: str, packed: bytes) -> None:
    unpacker = unpacker_for(encoding)
    assert unpacker is not None
    assert unpacker.feed(packed, 10) == TEXT[:11]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_ends_too_early_is_not_complete(encoding: str) -> None:
    unpacker = unpacker_for(encoding)
    assert unpacker is not None
    assert unpacker.is_complete(), "an empty body is one"
    packed = gzip.compress(TEXT) if encoding == "gzip" else zlib.compress(TEXT)
    unpacker.feed(packed[:-3], len(TEXT))
    assert not unpacker.is_complete()


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
def test_an_encoding_that_was_not_asked_for_is_unknown(encoding: str) -> None:
    assert unpacker_for(encoding) is None


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_small_body_never_takes_much_memory_at_once(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(bytes(60_000_000))
    sizes = [len(piece) for piece in unpack_body([bomb], encoding, 100_000_000)]
    assert sum(sizes) == 60_000_000
    assert max(sizes) < 20_000_000
    with pytest.raises(BodyError, match="longer"):
        sizes.extend(len(piece) for piece in unpack_body([bomb], encoding, 30_000_000))


def test_a_packed_body_of_nothing_has_an_end_too() -> None:
    nothing = itertools.repeat(gzip.compress(b"") * 100)
    with pytest.raises(BodyError, match="longer"):
        list(unpack_body(nothing, "gzip", 100_000))
