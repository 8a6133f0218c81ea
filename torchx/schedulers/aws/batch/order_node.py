# Runs on the nodes of a job whose roles have an order: starts the program of a node, on the main node decides for all.
# Job definitions carry this text, for Python 3.8 without torchx. Each node tells the main node its state, again and
# again, as a line of JSON, and is answered what to do: {}: go on, {"hosts": [...]}: start, {"end": 1}: end. What is
# decided is a line with MARK in the log of the main node, node 0. It ends last, and its exit code is the job's.
from __future__ import annotations

import functools
import http.client
import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

PORT, MARK = 29477, "@torchx-order"
STOPPED, UNREADY = 86, 87
REPORT_S, LOST_S, GRACE_S = 1800, 90, 30  # until a node has reported (images may be large), is heard again, has ended
TOKEN, LONGEST = os.environ.get("AWS_BATCH_JOB_ID", "").partition("#")[0], 1 << 17  # bytes: there may be 5000 hosts


def main(roles: list[dict[str, Any]], words: list[str]) -> int:
    index, until = int(os.environ["AWS_BATCH_JOB_NODE_INDEX"]), time.monotonic() + REPORT_S
    node, job = Node(roles, index, words), serve(roles) if index == 0 else None
    while True:
        said = {**node.state, "token": TOKEN, "node": index}
        try:
            answer = job.tell(said, "127.0.0.1") if job else ask(said)
            until = time.monotonic() + LOST_S
        except (OSError, ValueError):
            answer = {"end": 1} if time.monotonic() > until else {"lost": 1}
        if node.state["code"] is None:
            node.follow(answer)
        elif job.over if job else "lost" not in answer:
            own = int(node.state["code"])
            return own if not job or (job.code == STOPPED and own) else job.code or 0
        time.sleep(0.2 + roles[-1]["first"] / 200)


class Node:
    def __init__(self, roles: list[dict[str, Any]], index: int, words: list[str]) -> None:
        self.roles, self.index, self.words = roles, index, words
        self.role = next(role for role in reversed(roles) if role["first"] <= index)
        self.process: Any = None
        self.pump = threading.Thread(target=self.pass_on, daemon=True)
        self.output, self.matched, self.kill_at = b"", False, 0.0
        self.state: dict[str, Any] = {"waits": True, "ready": False, "late": "", "code": None, "said": ""}
        signal.signal(
            signal.SIGTERM, lambda number, _: self.signal(number) if self.process else self.state.update(code=143)
        )

    def follow(self, answer: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.process is None:
            if "end" in answer:
                self.state["code"] = STOPPED
            elif "hosts" in answer:
                self.start(answer["hosts"])
        elif (code := self.process.poll()) is not None:
            self.pump.join(1)  # not longer: a process that it has left may hold the pipe
            self.look(now)
            self.state["code"] = STOPPED if self.kill_at else code if code >= 0 else 128 - code
        elif "end" not in answer:
            self.look(now)
        elif not self.kill_at:
            self.kill_at = now + GRACE_S
            self.signal(signal.SIGTERM)
        elif now > self.kill_at:
            self.signal(signal.SIGKILL)
            self.state["code"] = STOPPED

    def start(self, hosts: list[str]) -> None:
        k = str(self.index - self.role["first"])
        places, env = {"${replica_id}": k}, {}
        for role in self.roles:
            its, port = hosts[role["first"] :][: role["replicas"]], [*role["port_map"].values(), ""][0]
            env[role["variable"]] = ",".join(f"{host}:{port}".rstrip(":") for host in its)
            ports = {f"port.{name}": str(number) for name, number in role["port_map"].items()}
            known = {"host": its[0], "hosts": env[role["variable"]], **ports}
            places.update({f"${{role.{role['name']}.{name}}}": value for name, value in known.items()})
        places[f"${{role.{self.role['name']}.host}}"] = self.host = hosts[self.index]
        place = functools.partial(re.compile("|".join(map(re.escape, places))).sub, lambda m: places[m[0]])
        env.update({name: place(value) for name, value in os.environ.items()})
        env.update(TORCHX_REPLICA_ID=k, TORCHX_RANK0_HOST=hosts[self.role["first"]])
        words = ["/bin/sh", "-c", 'exec "$@"', "sh", *map(place, self.words)]  # says why a program cannot be started
        pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self.role["probe"] else {}
        self.process = subprocess.Popen(words, env=env, start_new_session=True, **pipe)
        self.late = time.monotonic() + self.role["within_s"]
        self.state["waits"] = False
        self.pump.start()

    def pass_on(self) -> None:
        wanted = re.compile(self.role["what"] if self.role["probe"] == "log" else "(?!)")
        while data := os.read(self.process.stdout.fileno(), 1 << 16) if self.process.stdout else b"":
            self.output = self.output[-4096:] + data
            self.matched = self.matched or any(map(wanted.search, self.output.decode("utf-8", "replace").splitlines()))
            while data:
                data = data[os.write(1, data) :]

    def look(self, now: float) -> None:
        lines = self.output.decode("utf-8", "replace").splitlines()
        self.state["said"] = next((line.strip()[:120] for line in reversed(lines) if line.strip()), "")
        if self.role["probe"] and not self.state["ready"]:
            seen = self.probe(self.role["probe"], self.role["what"])
            self.state.update(ready=not seen, late=seen if now > self.late else "")

    def probe(self, kind: str, what: str) -> str:  # returns why it is not ready
        if kind == "log":
            return "" if self.matched else "no line of its output matches"
        if kind == "file":
            return "" if os.path.exists(what) else "it does not exist"
        return get("localhost", self.role["ports"][0], what) and get(self.host, self.role["ports"][0], what)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def get(host: str, port: int, path: str) -> str:  # without a path: whether the port accepts connections
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=10)) as link:
            link.connect()
            if path:
                link.request("GET", path)
            status = link.getresponse().status if path else 200
    except (OSError, http.client.HTTPException) as e:
        return getattr(e, "strerror", None) or str(e)
    return "" if 200 <= status < 400 else f"status {status}"


def ask(said: dict[str, Any]) -> Any:
    with socket.create_connection((os.environ["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"], PORT), 10) as link:
        link.sendall(json.dumps(said).encode() + b"\n")
        return json.loads(link.makefile().readline(LONGEST))


class Job:  # on the main node; all that follows is left out elsewhere
    def __init__(self, roles: list[dict[str, Any]]) -> None:
        new = {"host": "", "heard": time.monotonic() + REPORT_S, "begun": False, "ready": False, "code": None}
        for role in roles:
            numbers = range(role["first"], role["first"] + role["replicas"])
            role["nodes"] = [SimpleNamespace(**new, said="", role=role, number=number) for number in numbers]
        self.roles = {role["name"]: role for role in roles}
        self.nodes = [node for role in roles for node in role["nodes"]]
        self.lock, self.over = threading.Lock(), False
        self.code: int | None = None

    def tell(self, said: dict[str, Any], host: str, here: str = "") -> Any:
        with self.lock:
            node = self.nodes[said["node"]]
            node.heard, node.host, self.nodes[0].host = time.monotonic(), node.host or host, here or self.nodes[0].host
            node.said = str(said["said"])
            if said["ready"] and not node.ready:
                node.ready = True
                mark(f"ready {node.number}")
            if said["code"] is not None and node.code is None:
                node.code = said["code"]
                mark(f"ended {node.number} {node.code}")
            if said["late"] and not self.is_ready(node.role):
                self.end(UNREADY, f"unready {node.role['late']}: {said['late']}", node)
            self.decide()
            if said["waits"] and node.begun and self.code is None:
                return {"hosts": [one.host for one in self.nodes]}
            return {} if self.code is None else {"end": 1}

    def is_ready(self, role: dict[str, Any], possibly: bool = False) -> bool:
        ready = [n.begun and not n.code and (n.ready or not role["probe"]) for n in role["nodes"]]
        return bool(sum(ready) + possibly * sum(n.code is None for n in role["nodes"]) >= role["at_least"])

    def decide(self) -> None:
        for node in self.nodes:
            if node.code is None and time.monotonic() > node.heard + LOST_S:
                node.code = STOPPED
                self.end(STOPPED, f"lost node {node.number} ({node.role['name']}) does not report to the main node")
        roles, codes = self.roles.values(), {node.code for node in self.nodes}
        awaited = {name for node in self.nodes if not node.begun for name in node.role["after"]}
        never = [role for role in roles if role["name"] in awaited and not self.is_ready(role, possibly=True)]
        if codes - {None, 0}:
            self.end(STOPPED)
        elif None not in codes or any(role["ends_job"] and all(n.code == 0 for n in role["nodes"]) for role in roles):
            self.end(0)
        elif never:
            self.end(UNREADY, f"unready {never[0]['ended']}", next(n for n in never[0]["nodes"] if not n.ready))
        elif self.code is None and all(node.host for node in self.nodes):
            for role in [*roles] * len(roles):  # those that start may make others ready
                if not role["nodes"][0].begun and all(self.is_ready(self.roles[name]) for name in role["after"]):
                    for node in role["nodes"]:
                        node.begun = True
                        mark(f"began {node.number}")
        self.over = self.code is not None and all(node.code is not None or not node.host for node in self.nodes)

    def end(self, code: int, why: str = "ends", node: Any = None) -> None:
        if self.code is None:
            self.code = code
            mark(f"{why}; its last words: {node.said}" if node and node.said else why)


def mark(text: str) -> None:
    os.write(1, f"{MARK} {' '.join(text.split())[:2000]}\n".encode("utf-8", "replace"))


def serve(roles: list[dict[str, Any]]) -> Job:
    job = Job(roles)

    class Handler(socketserver.StreamRequestHandler):  # others may reach the port, too
        timeout = 10

        def handle(self) -> None:
            with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
                said = json.loads(self.rfile.readline(LONGEST))
                if said["token"] == TOKEN:
                    answer = job.tell(said, self.client_address[0], self.connection.getsockname()[0])
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

    socketserver.ThreadingTCPServer.request_queue_size = 128
    threading.Thread(target=socketserver.ThreadingTCPServer(("", PORT), Handler).serve_forever, daemon=True).start()
    return job


if __name__ == "__main__":
    os._exit(main(json.loads(sys.argv[2]), sys.argv[3:]))
