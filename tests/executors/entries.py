"""Entry functions for test_startup.py: a new process imports them by name."""

import atexit
import json
import os
import signal
import sys
import threading
import time


def echo(sock, name):
    while data := sock.recv(65536):
        sock.sendall(data)


def spin(sock, name):
    """Never lets go of the interpreter lock of its own accord, nor makes a system call."""
    sys.setswitchinterval(1000)
    sock.sendall(b"!")
    while True:
        pass


def hoard(sock, name):
    data = bytearray(200_000_000)
    sock.sendall(b"%d" % len(data))


def end(sock, name):
    """End in the way that the name says."""
    if name.startswith("signal "):
        signum = int(name.split()[1])
        signal.signal(signum, signal.SIG_DFL) if signum not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), signum)
        time.sleep(10)
    elif name.startswith("exit "):
        sys.exit(int(name.split()[1]))
    elif name.startswith("_exit "):
        os._exit(int(name.split()[1]))
    elif name == "leave with words":
        sys.exit("words")
    elif name == "raise":
        raise ValueError("this is why")
    elif name == "at exit":
        atexit.register(sock.sendall, b"at exit")
        print("kept back", end="")


def tell(sock, name):
    """Tell about this process, in JSON."""
    import random

    import numpy as np

    main = sys.modules["__main__"]
    told = {
        "name": name,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "cwd": os.getcwd(),
        "path": sys.path,
        "argv": sys.argv,
        "environ": dict(os.environ),
        "main": sorted(key for key in vars(main) if not key.startswith("__")),
        "stdin": sys.stdin.read(),
        "random": [random.random(), float(np.random.random())],
        "threads": threading.active_count(),
        "fds": {fd: _link(fd) for fd in os.listdir("/proc/self/fd")},
        "blocking": sock.gettimeout() is None,
    }
    sock.sendall(json.dumps(told).encode())


def _link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "closed"


def shout(sock, name):
    print("out of", name)
    print("err of", name, file=sys.stderr)
