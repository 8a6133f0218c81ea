"""A program with the command line of AWS's `session-manager-plugin`, for tests: see :mod:`tests.schedulers.aws.ecs_exec`.

session-manager-plugin SESSION REGION StartSession PROFILE PARAMETERS ENDPOINT
"""

import json
import os
import select
import socket
import struct
import subprocess
import sys
from urllib.parse import urlsplit

FRAME = struct.Struct(">BHHI")
CHUNK = 1024
LOOK_S = 0.05


def main() -> int:
    session, _, operation, _, parameters, _ = sys.argv[1:]
    assert operation == "StartSession"
    assert json.loads(parameters).keys() == {"Target"}
    found = json.loads(session)
    print(f"\nStarting session with SessionId: {found['sessionId']}", flush=True)
    subprocess.run(["stty", "cbreak", "-echo"], check=True)  # of its stdin, which so has to be a terminal
    address = urlsplit(found["streamUrl"])
    with socket.create_connection((address.hostname, address.port)) as far:
        far.sendall(json.dumps(sys.argv[1:]).encode() + b"\n")
        relay(far)
    print(f"\n\nExiting session with sessionId: {found['sessionId']}.\n", flush=True)
    return 0


def relay(far: socket.socket) -> None:
    size = None
    while True:
        if size != (size := os.get_terminal_size(0)):
            far.sendall(FRAME.pack(1, size.columns, size.lines, 0))
        ready = select.select([0, far.fileno()], [], [], LOOK_S)[0]
        if far.fileno() in ready:
            data = far.recv(CHUNK)
            if not data:
                return
            os.write(1, data)
        if 0 in ready:
            data = os.read(0, CHUNK)
            if not data:
                sys.exit("Cannot perform start session: EOF")
            far.sendall(FRAME.pack(0, 0, 0, len(data)) + data)


if __name__ == "__main__":
    sys.exit(main())
