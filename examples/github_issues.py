"""A connector: the issues and pull requests of a GitHub repository, with their comments, as JSON lines.

    python github_issues.py OWNER/REPOSITORY

The cursor is the time of the last update. GITHUB_TOKEN raises the rate limit and opens private repositories.
GITHUB_API_URL is the address of another server. Deleted issues stay, because the API does not list them.
"""

import datetime
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

API = os.environ.get("GITHUB_API_URL", "https://api.github.com")
TOKEN = os.environ.get("GITHUB_TOKEN", "")
LONGEST_WAIT_SECONDS = 120
ATTEMPTS = 4


def main() -> None:
    repository = sys.argv[1]
    cursor = json.loads(sys.stdin.readline() or "null") or {}
    parameters = {"state": "all", "sort": "updated", "direction": "asc", "per_page": "100", **cursor}
    # Updated issues come last, so that the cursor of each page is a place to continue from.
    for page in get_pages(f"/repos/{repository}/issues?{urllib.parse.urlencode(parameters)}"):
        for issue in page:
            print(json.dumps(describe(issue)))
        if page:
            print(json.dumps({"cursor": {"since": page[-1]["updated_at"]}}), flush=True)


def describe(issue: dict[str, Any]) -> dict[str, Any]:
    """Return the line of an issue."""
    parts = [issue["body"] or ""]
    if issue["comments"]:
        for page in get_pages(issue["comments_url"]):
            parts += [f"**{comment['user']['login']}**: {comment['body']}" for comment in page]
    return {
        "id": str(issue["number"]),
        "url": issue["html_url"],
        "title": issue["title"],
        "text": "\n\n".join(parts),
        "content_type": "text/markdown",
        "metadata": {
            "kind": "pull request" if "pull_request" in issue else "issue",
            "state": issue["state"],
            "labels": [label["name"] for label in issue["labels"]],
            "author": issue["user"]["login"],
            "updated": issue["updated_at"][:10],
        },
    }


def get_pages(path: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a listing."""
    url = urllib.parse.urljoin(API, path)
    while url:
        if urllib.parse.urlsplit(url)[:2] != urllib.parse.urlsplit(API)[:2]:
            sys.exit("the server names an address of another server")  # which must not get the token
        body, link = get(url)
        yield json.loads(body)
        following = re.search(r'<([^<>]+)>; rel="next"', link)
        url = following[1] if following else ""


def get(url: str) -> tuple[bytes, str]:
    """Return the body and the Link header of an answer. Wait for the rate limit; end if that takes too long."""
    headers = {"Accept": "application/vnd.github+json", "User-Agent": "pair-github-issues"}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
                return answer.read(), answer.headers.get("Link", "")
        except urllib.error.HTTPError as fault:
            reason, seconds = f"HTTP {fault.code} {fault.reason}", find_wait(fault, attempt)
        except OSError as fault:
            reason, seconds = str(fault), 2.0**attempt
        if seconds is None or seconds > LONGEST_WAIT_SECONDS or attempt == ATTEMPTS:
            break
        time.sleep(seconds)
    sys.exit(f"{urllib.parse.urlsplit(url).path}: {reason}")


def find_wait(fault: urllib.error.HTTPError, attempt: int) -> float | None:
    """Return the seconds after which the request may succeed; None if it never will."""
    if retry_after := fault.headers.get("Retry-After", ""):
        return float(retry_after) if retry_after.isdigit() else 2.0**attempt
    if fault.headers.get("X-RateLimit-Remaining") == "0":
        now = datetime.datetime.now(datetime.UTC).timestamp()
        return max(0.0, float(fault.headers.get("X-RateLimit-Reset", now)) - now)
    return 2.0**attempt if fault.code >= 500 or fault.code == 429 else None


if __name__ == "__main__":
    main()
