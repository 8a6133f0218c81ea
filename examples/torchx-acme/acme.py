"""The Python client of a made-up cloud. Its jobs are real: each task is a process of this machine."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

HOME = Path(os.environ.get("ACME_HOME", "acme-jobs")).absolute()
SCRIPT = 'at=$0; "$@" >"$at/log" 2>&1; echo $? >"$at/new"; mv "$at/new" "$at/exit"'


class Client:
    def create_job(self, name, tasks, labels):
        for task in tasks:
            folder = HOME / name / task["name"]
            folder.mkdir(parents=True)
            argv = ["sh", "-c", SCRIPT, str(folder), *task["command"]]
            env = {**os.environ, **task["env"]}
            null = subprocess.DEVNULL
            started = subprocess.Popen(argv, env=env, stdin=null, stdout=null, stderr=null, start_new_session=True)
            (folder / "pid").write_text(str(started.pid))
        (HOME / name / "labels").write_text(json.dumps(labels))

    def get_job(self, name):
        """Its labels and tasks; None when there is no such job."""
        if not (HOME / name / "labels").exists():
            return None
        tasks = {}
        for folder in (HOME / name).glob("*/"):
            code = int((folder / "exit").read_text()) if (folder / "exit").exists() else None
            state = "running" if code is None else "error" if code else "completed"
            if (folder / "stopped").exists():
                state = "stopped"
            tasks[folder.name] = {"state": state, "exit_code": code}
        return {"name": name, "labels": json.loads((HOME / name / "labels").read_text()), "tasks": tasks}

    def list_jobs(self):
        return [self.get_job(path.parent.name) for path in HOME.glob("*/labels")]

    def read_log(self, name, task):
        return (HOME / name / task / "log").read_text()

    def stop_job(self, name):
        for folder in (HOME / name).glob("*/"):
            if not (folder / "exit").exists() and not (folder / "stopped").exists():
                (folder / "stopped").touch()
                os.killpg(int((folder / "pid").read_text()), signal.SIGKILL)

    def delete_job(self, name):
        shutil.rmtree(HOME / name)
