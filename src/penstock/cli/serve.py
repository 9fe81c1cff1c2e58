"""``penstock serve module:pipeline``: serve a pipeline until SIGTERM or Ctrl-C.

At the first signal the server takes no new clients and lets those that are there finish their epoch, for at most
``--drain-s`` seconds; at the second it ends at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from penstock.cli.explain import add_target, find_pipeline
from penstock.service.server import MODES, Server, serve

if TYPE_CHECKING:
    import argparse


SUMMARY = "serve a pipeline to training loops on this or other machines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_target(parser)
    parser.add_argument("--bind", default="tcp://127.0.0.1:5557", metavar="ADDRESS", help="(tcp://127.0.0.1:5557)")
    parser.add_argument("--mode", choices=MODES, default="split", help="who gets which batches (split)")
    parser.add_argument(
        "--credit", type=int, default=10, metavar="N", help="batches that a client may have ahead (10)"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides all random choices (0)")
    parser.add_argument(
        "--ledger", metavar="FILE", help="mode split: keep who was handed what, for a restart; servers may share it"
    )
    parser.add_argument("--key-file", metavar="FILE", help="the server's key, made by penstock keygen")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="CLIENT.pub", help="a client that may connect; repeat it"
    )
    parser.add_argument("--insecure", action="store_true", help="bind to any address without keys")
    parser.add_argument("--drain-s", type=float, default=30.0, metavar="S", help="time for clients at the end (30)")
    parser.add_argument("--report-s", type=float, default=0.0, metavar="S", help="print the counters this often")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    server = serve(
        find_pipeline(args.target),
        args.bind,
        mode=args.mode,
        credit=args.credit,
        ledger=args.ledger,
        key=args.key_file,
        allow=args.allow,
        insecure=args.insecure,
        seed=args.seed,
    )
    with server:
        print(f"serving {args.target} at {server.address}, mode {args.mode}", flush=True)
        _until_signal(server, args.drain_s, args.report_s)
    print("penstock serve: ended", file=sys.stderr)
    return 0


def _until_signal(server: Server, drain_s: float, report_s: float) -> None:
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set():
            server.hurry()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        while not stop.is_set() and not server.wait(0):
            if not stop.wait(report_s or 0.5) and report_s:
                print(_line(server), flush=True)
        server.drain(drain_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(server: Server) -> str:
    """Who waits for whom, in a line."""
    stats = server.stats()
    return (
        f"{stats['server.clients']:.0f} clients, {stats['server.batches']:.0f} batches, "
        f"{stats['server.bytes'] / 1e6:.1f} MB; {stats['server.waiting_clients']:.0f} wait for the pipeline, "
        f"{stats['server.full_clients']:.0f} have all they take"
    )
