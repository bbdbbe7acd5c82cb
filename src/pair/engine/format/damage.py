"""What the libraries say of a file that is not what it should be, as one error: E207."""

import contextlib
import struct
from collections.abc import Iterator

from pair import errors


@contextlib.contextmanager
def damage_errors(key: str) -> Iterator[None]:
    """Raises E207 for whatever a file makes readers raise. `key`: of the file."""
    try:
        yield
    except errors.PairError:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, struct.error) as fault:
        raise damage_of(key, fault) from fault


def damage_of(key: str, fault: Exception) -> errors.DataError:
    """E207. Where `with` takes too long: for each hit of a query."""
    return errors.stored_data_damaged(key, f"it cannot be read: {fault}")
