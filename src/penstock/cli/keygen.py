"""``penstock keygen FILE``: make the keys of a data server or of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.service.keys import make_key

if TYPE_CHECKING:
    import argparse


SUMMARY = "make a pair of keys for a data server or a client of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("file", metavar="FILE", help="where the secret key goes; the public one goes to FILE.pub")
    parser.add_argument("--server", metavar="SERVER.pub", help="for a client: the public key of its server")


def run(args: argparse.Namespace) -> int:
    """Make the keys, and say where they are. The secret is not printed."""
    key = make_key(args.file, args.server)
    print(f"secret key in {args.file}, readable by you alone\npublic key in {args.file}.pub: {key.public}")
    return 0
