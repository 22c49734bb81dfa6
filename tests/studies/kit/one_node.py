"""A Slurm cluster of one node, this machine, with everything it writes in one folder; for the long tests."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG = """
ClusterName=metastable
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=60 State=UP
"""
DAEMONS = ("munged", "slurmctld", "slurmd")


def reason() -> str:
    """Why there can be no cluster here; empty if there can.

    Debian's packages are installed where nothing else is missing.
    """
    if os.name != "posix" or os.geteuid() != 0:
        return "Slurm's daemons are started as root"
    if all(shutil.which(daemon) for daemon in DAEMONS):
        return ""
    if not shutil.which("apt-get"):
        return "slurmctld is not installed and there is no apt-get"
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm", "munge"],
    ):
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"slurm-wlm cannot be installed: {done.stderr.strip()[-200:]}"
    return "" if all(shutil.which(daemon) for daemon in DAEMONS) else "slurm-wlm came without its daemons"


@contextmanager
def one_node(folder: Path) -> Iterator[dict[str, str]]:
    """Start a cluster in a folder and yield the environment that finds it; stop it at the end."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    text = CONFIG.format(host=host, folder=folder, ports=_ports(), cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(text)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    commands = (
        [
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"),
            *(f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"),
        ],
        ["slurmctld", "-D", "-f", str(folder / "slurm.conf")],
        ["slurmd", "-D", "-N", host, "-f", str(folder / "slurm.conf")],
    )
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as out:
                running.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            time.sleep(1)
        _wait_until_idle(environment, folder)
        yield environment
    finally:
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    asked = ["sinfo", "--noheader", "--format=%T"]
    for _ in range(60):
        found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        if found.stdout.strip() == "idle":
            return
        time.sleep(1)
    logs = "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in sorted(folder.glob("*.log")))
    raise RuntimeError(f"the node did not come up: {found.stdout}{found.stderr}\n{logs}")


def _ports() -> tuple[int, int]:
    """Two ports that are free."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]
