"""Names of files that hold any name: of a probe, a task or a model."""

from __future__ import annotations

from urllib.parse import quote

import xxhash

_MAX_NAME_LENGTH = 80  # characters of a part of a file's name


def file_name(name: str) -> str:
    """Return a name as part of a file's name: not hidden, without separators, and short enough for every file system.

    ``urllib.parse.unquote`` gives the name back, unless it is long: then it is cut and ends in a digest.

    Example:
        >>> file_name("a/b"), file_name(".."), file_name("x" * 300)[-20:]
        ('a%2Fb', '%2E.', 'xxxxxxx-a5d1b4607dc8')
    """
    escaped = quote(name, safe=" ", errors="surrogatepass") or "%"
    if escaped.startswith("."):
        escaped = f"%2E{escaped[1:]}"
    if len(escaped) <= _MAX_NAME_LENGTH:
        return escaped
    digest = xxhash.xxh3_64_hexdigest(name.encode(errors="surrogatepass"))[:12]
    return f"{escaped[: _MAX_NAME_LENGTH - 13]}-{digest}"
