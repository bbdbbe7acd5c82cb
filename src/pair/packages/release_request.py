"""Ask a host for its feed of releases; E005, E019."""

from pair import errors
from pair.packages.release_index import LIMIT_BYTES
from pair.packages.rules import without_credentials
from pair.web.http_answer import RequestFault
from pair.web.http_client import HttpClient


def read_remote_feed(web: HttpClient, url: str) -> bytes:
    shown = without_credentials(url)
    try:
        answer = web.read(url, {"Accept": "application/json"}, limit_bytes=LIMIT_BYTES)
    except RequestFault as fault:
        if fault.was_reached and not fault.retryable:
            raise errors.feed_unreadable(shown, f"The answer cannot be used: {fault.reason}") from fault
        raise errors.download_failed(shown, fault.reason) from fault
    if answer.status != 200:
        reason = "no feed there" if answer.status in {404, 410} else "the feed cannot be read"
        raise errors.download_failed(shown, f"HTTP {answer.status}: {reason}")
    return answer.body
