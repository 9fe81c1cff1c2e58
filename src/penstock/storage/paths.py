"""Paths, URLs and patterns as text: nothing here looks at a file system.

A pattern has ``*`` and ``?`` (any name, any letter, but no ``/``), ``[...]`` (one of these letters) and ``**`` (any
number of folders). A name that begins with a dot matches only a pattern that spells the dot. Braces, ``{a,b}`` and
``{000..099}``, are expanded first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from penstock.errors import PlanError

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_MAGIC = re.compile(r"[*?[]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
#: a pattern that would be written out as more names than this is a mistake
_MOST_NAMES = 1_000_000


def scheme_of(path: str) -> str:
    """The scheme of a URL, in small letters; nothing for a path.

    >>> scheme_of("S3://bucket/a"), scheme_of("a/b"), scheme_of("zip://a.csv::s3://bucket/b.zip")
    ('s3', '', 'zip')
    """
    found = _SCHEME.match(path)
    return found[1].lower() if found else ""


def local(path: str) -> str | None:
    """The path on this machine; None for a URL of another place.

    >>> local("a/b.tar"), local("file:///data/a%20b.tar"), local("s3://bucket/a")
    ('a/b.tar', '/data/a b.tar', None)
    """
    scheme = scheme_of(path)
    if not scheme:
        return path
    if scheme != "file":
        return None
    from urllib.parse import unquote

    host, slash, rest = path[len("file://") :].partition("/")
    if host not in ("", "localhost"):
        raise PlanError(
            f"{path!r} names the machine {host!r}; a file:// URL has three slashes: file:///{host}/{rest}"
        )
    return unquote(slash + rest, errors="surrogateescape")


def without_query(path: str) -> str:
    """A web address without what follows its ``?``; any other path as it is, since there it is a letter.

    >>> without_query("https://host/a.gz?key=1"), without_query("why?.gz")
    ('https://host/a.gz', 'why?.gz')
    """
    return path.partition("?")[0] if scheme_of(path) in ("http", "https") else path


def has_magic(path: str) -> bool:
    """Whether it is a pattern: a glob, or one with braces. A ``?`` after an HTTP address is none.

    >>> has_magic("a/*.tar"), has_magic("a-{0..9}.tar"), has_magic("a.tar"), has_magic("https://host/a?key=1")
    (True, True, False, False)
    """
    if scheme_of(path) in ("http", "https"):
        return _BRACES.search(path) is not None or "*" in path
    return _MAGIC.search(path) is not None or _BRACES.search(path) is not None


def split_magic(path: str) -> tuple[str, str]:
    """The folder before the first part with a pattern, and the rest.

    >>> split_magic("a/b/c-*.tar"), split_magic("s3://bucket/*/x"), split_magic("/a*"), split_magic("a*")
    (('a/b', 'c-*.tar'), ('s3://bucket', '*/x'), ('/', 'a*'), ('', 'a*'))
    """
    found = _MAGIC.search(path)
    if found is None:
        return path, ""
    cut = path.rfind("/", 0, found.start())
    return path[: max(cut, 0)] or path[: cut + 1], path[cut + 1 :]


def joined(folder: str, name: str) -> str:
    """A name in a folder, of a path or a URL alike.

    >>> joined("a", "b"), joined("s3://c/", "b"), joined("", "b")
    ('a/b', 's3://c/b', 'b')
    """
    return f"{folder}/{name}" if folder and not folder.endswith("/") else folder + name


# ---------------------------------------------------------------------- braces


def braced(pattern: str) -> list[str]:
    """Everything that a pattern with braces stands for, in the order in which it is written.

    >>> braced("a-{08..10}.{tar,idx}")
    ['a-08.tar', 'a-08.idx', 'a-09.tar', 'a-09.idx', 'a-10.tar', 'a-10.idx']
    """
    found = _braced(pattern, pattern)
    if len(found) > _MOST_NAMES:
        raise _too_many(pattern)
    return found


def _braced(text: str, pattern: str) -> list[str]:
    start = text.find("{")
    end = _closing(text, start)
    if start < 0 or end < 0:
        return [text]
    behind = _braced(text[end + 1 :], pattern)
    inside = [one for choice in _choices(text[start + 1 : end], pattern) for one in _braced(choice, pattern)]
    if len(inside) * len(behind) > _MOST_NAMES:
        raise _too_many(pattern)
    return [text[:start] + one + rest for one in inside for rest in behind]


def _closing(text: str, start: int) -> int:
    """Where the brace that opens at `start` closes; -1 if it does not."""
    depth = 0
    for at in range(max(start, 0), len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
    return -1


def _choices(inside: str, pattern: str) -> list[str]:
    depth, parts = 0, [""]
    for letter in inside:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if len(parts) > 1 else _range(inside, pattern)


def _range(inside: str, pattern: str) -> list[str]:
    found = _RANGE.fullmatch(inside)
    if found is None:
        raise PlanError(
            f"{pattern!r}: {{{inside}}} is neither a list such as {{a,b}} nor a range such as {{000..099}}"
        )
    first, last = int(found[1]), int(found[2])
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step >= _MOST_NAMES:
        raise _too_many(pattern)
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (found[1], found[2]))
    width = max(len(found[1]), len(found[2])) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def _too_many(pattern: str) -> PlanError:
    return PlanError(f"{pattern!r} stands for more than {_MOST_NAMES:,} names; give a glob or a list instead")


# ---------------------------------------------------------------------- globs


@lru_cache(maxsize=64)
def matcher(pattern: str) -> Callable[[str], object]:
    """A test for names, relative to the folder of the pattern.

    >>> match = matcher("**/[ab]*.jpg")
    >>> [name for name in ("a.jpg", "x/y/b1.jpg", "c.jpg", "x/.h/a.jpg", "a.jpg/c") if match(name)]
    ['a.jpg', 'x/y/b1.jpg']
    """
    try:
        return re.compile("".join(_parts(pattern)), re.DOTALL).fullmatch
    except (re.error, FutureWarning) as exc:
        raise PlanError(f"the pattern {pattern!r} cannot be understood: {exc}") from exc


def _parts(pattern: str) -> Iterator[str]:
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            yield r"[^./][^/]*(?:/[^./][^/]*)*" if last else r"(?:[^./][^/]*/)*"
        else:
            yield _part(part) + ("" if last else "/")


def _part(part: str) -> str:
    out = [] if part.startswith(".") else [r"(?!\.)"]
    at = 0
    while at < len(part):
        letter = part[at]
        at += 1
        negated = letter == "[" and part[at : at + 1] in ("!", "^")
        # A "]" right behind the opening is one of the letters.
        end = part.find("]", at + negated + 1) if letter == "[" else -1
        if letter == "*":
            out.append("[^/]*")
        elif letter == "?":
            out.append("[^/]")
        elif end > 0:
            letters = "".join(one if one == "-" else re.escape(one) for one in part[at + negated : end])
            out.append(f"(?!/)[^{letters}]" if negated else f"[{letters}]")
            at = end + 1
        else:
            out.append(re.escape(letter))
    return "".join(out)
