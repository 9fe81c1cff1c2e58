"""Clients of obstore: made when they are first needed, one set for each process.

How long a client waits for the next byte before a try has failed: twice the usual duration of a whole read and six
times its usual deviation, rounded up to a power of two, at least 1/8 s (1 s while these are unknown). After each
silent try the next one of the same read waits 4 times as long, at most `attempt_s`. So a request that got lost
costs little where answers are quick and even, and a store that is slow, or slow with some objects, gets its time.
obstore takes such a limit for a client and not for a request, so there is a client for each of a few limits.

obstore sends its requests from threads of its own, which a forked child does not have. So the child of a process
that has used obstore gets an error; without it, the child would hang.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from penstock import system
from penstock.errors import PenstockError, PlanError, missing_extra
from penstock.storage.paths import scheme_of
from penstock.storage.retry import GROWTH, Retries, first_line, split_options

#: options of the HTTP client, and not of the store
_CLIENT_OPTIONS = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"),
    *("http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle"),
    *("http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes"),
    *("proxy_url", "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"),
}
#: those that may come from the environment: which host is asked, and how
_FROM_ENVIRONMENT = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
)
#: clients that a process keeps; addresses with a query have one each
_MOST_CLIENTS = 64

#: silence for so many times the usual duration of a read, and its usual deviation, means that the request is lost
_TIMES, _DEVIATIONS = 2, 6
_LEAST_S = 0.125
_FIRST_S = 1.0
#: reads after which the usual duration is known
_KNOWN = 20
#: reads over which it is averaged
_LATEST = 32


class Client:
    """What reads from one bucket or host."""

    def __init__(self, root: str, options: Mapping[str, Any] | None) -> None:
        self._root = root
        self._retries, self._rest = split_options(options)
        self._stores: dict[float, Any] = {}
        self._reads = 0
        self._usual_s = 0.0
        self._deviation_s = 0.0

    def store(self, wait_s: float) -> Any:
        """The store of obstore that gives a request up when nothing has come for so long."""
        store = self._stores.get(wait_s)
        if store is None:
            store = self._stores[wait_s] = _store(self._root, self._retries, wait_s, dict(self._rest))
        return store

    def patience_s(self, silent: int) -> float:
        """How long a try waits for the next byte, if so many tries of the same read were silent before."""
        wait_s = _FIRST_S
        if self._reads >= _KNOWN:
            usual_s = _TIMES * self._usual_s + _DEVIATIONS * self._deviation_s
            # Few limits, so that there are few clients.
            wait_s = 2.0 ** math.ceil(math.log2(max(_LEAST_S, usual_s)))
        return min(self._retries.attempt_s, wait_s * float(GROWTH**silent))

    def took(self, seconds: float) -> None:
        """A read took so long. Called by several threads; one that gets lost among them does not matter."""
        self._reads += 1
        weight = 1 / min(self._reads, _LATEST)
        self._deviation_s += (abs(seconds - self._usual_s) * (self._reads > 1) - self._deviation_s) * weight
        self._usual_s += (seconds - self._usual_s) * weight


def _store(root: str, retries: Retries, wait_s: float, rest: dict[str, Any]) -> Any:
    try:
        from obstore.store import HTTPStore, from_url
    except ImportError:
        raise missing_extra("obstore", "cloud", f"reading {root}") from None
    if _forked:
        raise PenstockError(
            f"{root} cannot be read here: this process was forked from one that had read from an object store, and "
            "obstore does not work in such a child; start processes by 'spawn' or 'forkserver', as penstock does"
        )
    from datetime import timedelta

    global _used
    _used = True
    web = scheme_of(root) in ("http", "https")
    client_options = {
        **({"allow_http": scheme_of(root) == "http"} if web else _of_environment(scheme_of(root))),
        "timeout": timedelta(seconds=retries.total_s),
        "read_timeout": timedelta(seconds=wait_s),
        "connect_timeout": timedelta(seconds=wait_s),
        **{name: rest.pop(name) for name in _CLIENT_OPTIONS & rest.keys()},
        **rest.pop("client_options", {}),
    }
    # Tries are counted and named by us, so obstore makes one.
    once = {"max_retries": 0}
    try:
        # For a web address `from_url` would take some hosts for buckets, and ask for credentials.
        make = HTTPStore if web else from_url
        return make(root, client_options=client_options, retry_config=once, **rest)
    except Exception as exc:
        raise PlanError(f"{root}: storage_options do not fit: {first_line(exc)}") from exc


def _of_environment(scheme: str) -> dict[str, str]:
    """What obstore would take from the environment, if it were given no options of a client at all."""
    prefix = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}.get(scheme, "AZURE")
    found = {name: os.environ.get(f"{prefix}_{name.upper()}") for name in _FROM_ENVIRONMENT}
    return {name: value for name, value in found.items() if value is not None}


# ---------------------------------------------------------------------- those of this process

_lock = threading.Lock()
_clients: OrderedDict[tuple[str, str], Client] = OrderedDict()
#: this process has used obstore
_used = False
#: it was forked from one that had
_forked = False
#: clients that were copied by a fork: their connections are the parent's, so they are not closed here
_inherited: list[Any] = []


def client_of(root: str, options: Mapping[str, Any] | None) -> Client:
    """The client for a bucket or host with these options."""
    key = (root, repr(sorted(options.items(), key=repr)) if options else "")
    client = _clients.get(key)
    if client is None:
        with _lock:
            client = _clients.setdefault(key, Client(root, options))
            while len(_clients) > _MOST_CLIENTS:
                _clients.popitem(last=False)
    return client


def forget_clients() -> None:
    """Close all connections of this process; the next read makes new ones."""
    with _lock:
        _clients.clear()


def _after_fork_in_child() -> None:
    global _lock, _forked
    _lock = threading.Lock()
    _forked = _forked or _used
    _inherited.append(dict(_clients))
    _clients.clear()


system.at_fork(after_in_child=_after_fork_in_child)
