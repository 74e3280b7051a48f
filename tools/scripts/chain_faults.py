#!/usr/bin/env python3
"""How long a replication group pauses when a member is killed, frozen, or joins.

Three members on loopback, a bench as the load; one member after the other is killed (head, middle, tail) or the head is frozen, and
comes back. For each fault the longest time without an acknowledgement until the group serves without the member is its fail-over,
and the longest until it serves with the member again is its join. Prints p50, p99 and the longest, in milliseconds. With --judge it
fails if p99 of a fail-over is a second or more, or a join held writes up for more than 100 ms.

    tools/scripts/chain_faults.py --flashnet target/release/flashnet --faults 20
    tools/scripts/chain_faults.py --flashnet target/release/flashnet --faults 20 --etcd --memory /dev/shm --judge
"""

import argparse
import collections
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 120
SETTLED = 0.25
# Of --judge, in milliseconds.
FAIL_OVER_P99 = 1000
JOIN_LONGEST = 100


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    def __init__(self, directory):
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.place = client.removeprefix("http://")
        self.process = subprocess.Popen(
            ["etcd", "--name", "one", "--data-dir", f"{directory}/etcd",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             f"--initial-cluster=one={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Group:
    def __init__(self, options, directory, store):
        self.options, self.directory, self.store = options, directory, store
        self.memory = tempfile.mkdtemp(dir=options.memory or directory)
        self.ports = {member: free_port() for member in (1, 2, 3)}
        self.running = {}

    def chain(self, *arguments):
        return [self.options.flashnet, "--json", "chain", arguments[0], "--store", self.store, *arguments[1:]]

    def run(self, *arguments):
        done = subprocess.run(self.chain(*arguments), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{arguments}: {done.stderr}")
        return done.stdout

    def start(self, member):
        log = open(f"{self.directory}/member{member}.log", "a")
        self.running[member] = subprocess.Popen(
            self.chain("serve", "--member", str(member), "--listen", f"127.0.0.1:{self.ports[member]}",
                       "--memory", f"{self.memory}/{member}", *self.options.serve.split()),
            stdout=subprocess.DEVNULL, stderr=log)

    def wait(self, members):
        """Until just these serve; the chain."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            # Its store may be slow.
            asked = subprocess.run(self.chain("status"), capture_output=True, text=True)
            status = json.loads(asked.stdout) if asked.returncode == 0 else {"members": [], "active": False}
            seats = [seat for seat in status["members"] if seat["place"] is not None]
            serving = {seat["member"] for seat in seats if seat["state"] == "serving"}
            if status["active"] and serving == set(members) and len(seats) == len(members):
                return [seat["member"] for seat in sorted(seats, key=lambda seat: seat["place"])]
            time.sleep(0.02)
        sys.exit(f"{members} do not serve: {status}; logs are in {self.directory}")

    def freeze(self, member):
        """Not where it has the lock of a store in a file."""
        while True:
            self.running[member].send_signal(signal.SIGSTOP)
            frozen = time.monotonic()
            if self.store.startswith("etcd:"):
                return frozen
            with open(f"{self.store}.lock", "w") as lock:
                while time.monotonic() < frozen + 0.2:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return frozen
                    except BlockingIOError:
                        time.sleep(0.002)
            self.running[member].send_signal(signal.SIGCONT)

    def end(self):
        for process in self.running.values():
            process.kill()
            process.wait()


class Load:
    """A bench, and when its clock began."""

    def __init__(self, group, options):
        self.process = subprocess.Popen(
            group.chain("bench", "--seconds", "86400", "--progress", "20ms", "--pause", "2ms",
                        "--size", options.size, "--depth", str(options.depth), *options.bench.split()),
            stdout=subprocess.PIPE, text=True)
        self.began, self.last = None, None
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        while self.began is None and self.process.poll() is None:
            time.sleep(0.01)

    def read(self):
        for line in self.process.stdout:
            self.last = json.loads(line)
            if "at_s" in self.last:
                began = time.monotonic() - self.last["at_s"]
                self.began = began if self.began is None else min(began, self.began)

    def finish(self):
        self.process.send_signal(signal.SIGINT)
        self.reader.join()
        if self.process.wait() != 0:
            sys.exit("the bench failed")
        return self.last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flashnet", default="target/release/flashnet")
    parser.add_argument("--faults", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", default="head,middle,tail,freeze")
    parser.add_argument("--etcd", action="store_true", help="configured in etcd, instead of a file")
    parser.add_argument("--memory", help="directory of the members' memory [default: a temporary one]")
    parser.add_argument("--data", default="16MiB")
    parser.add_argument("--size", default="4KiB")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--bench", default="--misses 40",
                        help="more options of `chain bench` [default: %(default)s, so that it is not taken for dead itself]")
    parser.add_argument("--serve", default="", help="more options of `chain serve`")
    parser.add_argument("--judge", action="store_true", help="fail if writes are held up for too long")
    options = parser.parse_args()

    directory = tempfile.mkdtemp(prefix="chain-faults-")
    etcd = Etcd(directory) if options.etcd else None
    if etcd:
        time.sleep(3)
    group = Group(options, directory, f"etcd://{etcd.place}/group" if etcd else f"{directory}/store")
    windows = collections.defaultdict(list)
    try:
        group.run("create", "--members", "1,2,3", "--data", options.data)
        for member in (1, 2, 3):
            group.start(member)
        group.wait([1, 2, 3])
        load = Load(group, options)
        for _ in range(options.faults):
            for kind in options.kinds.split(","):
                chain = group.wait([1, 2, 3])
                time.sleep(SETTLED)
                victim = chain[{"head": 0, "middle": 1, "tail": 2, "freeze": 0}[kind]]
                fault = time.monotonic()
                if kind == "freeze":
                    fault = group.freeze(victim)
                else:
                    group.running[victim].kill()
                    group.running[victim].wait()
                group.wait([member for member in (1, 2, 3) if member != victim])
                time.sleep(SETTLED)
                back = time.monotonic()
                if kind == "freeze":
                    group.running[victim].send_signal(signal.SIGCONT)
                else:
                    group.start(victim)
                group.wait([1, 2, 3])
                time.sleep(SETTLED)
                windows[kind].append((fault, back))
                windows["join"].append((back, time.monotonic()))
        report = load.finish()
        group.run("verify")
    finally:
        group.end()
        if etcd:
            etcd.process.kill()
            etcd.process.wait()
    # What failed leaves its logs, and what members hold.
    shutil.rmtree(directory)
    shutil.rmtree(group.memory, ignore_errors=True)
    pauses = [(load.began + pause["at_s"], pause["ms"]) for pause in report["pauses"]]
    print(f"{report['records']} records, {report['records_s']:.0f} a second, p50 {report['p50_us']:.0f} us; {report['epochs']} epochs")
    print(f"{'':8} {'n':>4} {'p50':>7} {'p99':>7} {'longest':>8}  ms")
    late = []
    for kind, spans in windows.items():
        longest = sorted(max([ms for at, ms in pauses if begin <= at < end], default=0) for begin, end in spans)
        quantile = lambda part: longest[min(len(longest) - 1, int(part * len(longest)))]
        print(f"{kind:8} {len(longest):4} {quantile(0.5):7.0f} {quantile(0.99):7.0f} {longest[-1]:8.0f}")
        if longest[-1] > JOIN_LONGEST if kind == "join" else quantile(0.99) >= FAIL_OVER_P99:
            late.append(kind)
    if options.judge and late:
        sys.exit(f"too long: {', '.join(late)}")


if __name__ == "__main__":
    main()
