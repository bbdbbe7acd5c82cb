"""The page at `/` and its files, with a content security policy that allows nothing else.

The page holds no data, so it needs no credentials: it is a client of the other routes.
"""

import functools
import hashlib
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from pair import errors
from pair.app.http.access import Anyone
from pair.app.http.context import HttpRequest
from pair.app.http.schemas import PathId

router = APIRouter(include_in_schema=False)

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"
_DIRECTIVES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # Text never becomes markup or code, whatever the scripts of the page do with it.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)


@functools.cache
def _read_files() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Read all files once; return the content and the headers of each by its name."""
    files = {}
    for entry in resources.files("pair.app.ui").iterdir():
        kind = _KINDS.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            headers = {
                "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
                "Cache-Control": "no-cache",  # a browser keeps the file, and asks each time whether it has changed
                "Content-Security-Policy": "; ".join(_DIRECTIVES),
                "Content-Type": kind,
            }
            files[entry.name] = content, headers
    return files


@router.get("/")
async def send_index(request: Anyone) -> Response:
    return _send(_INDEX, request)


@router.get("/ui/{id:text}")
async def send_file(request: Anyone, id: PathId) -> Response:
    """Raises E604 for everything that is not one of the files, however it is written."""
    if id not in _read_files() or id == _INDEX:
        raise errors.no_such_route(request.scope["path"])
    return _send(id, request)


def _send(name: str, request: HttpRequest) -> Response:
    content, headers = _read_files()[name]
    known = {tag.strip().removeprefix("W/") for tag in request.header(b"if-none-match").split(",")}
    if {headers["ETag"], "*"} & known:
        return Response(status_code=304, headers={key: headers[key] for key in headers if key != "Content-Type"})
    return Response(content, headers=headers)
