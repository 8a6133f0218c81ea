"""The configuration files of the test cluster."""

from __future__ import annotations

from pathlib import Path

NODES = ("n1", "n2", "n3", "n4")
GPUS = 4


def slurm_conf(state: Path, host: str, *, accounting: bool) -> str:
    """``slurm.conf``: short cycles, so that tests need not wait, and patience with what is slow; https://slurm.schedmd.com/slurm.conf.html."""
    storage = (
        "AccountingStorageType=accounting_storage/slurmdbd\n"
        "AccountingStorageHost=localhost\n"
        "AccountingStoragePort=26819\n"
        "AccountingStorageEnforce=limits,qos\n"
        "AccountingStoreFlags=job_comment,job_script,job_env\n"
        "AccountingStorageTRES=gres/gpu"
        if accounting
        else "AccountingStorageType=accounting_storage/none"
    )
    return f"""ClusterName=tst
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool-%n
SlurmctldPidFile={state}/slurmctld.pidfile
SlurmdPidFile={state}/slurmd-%n.pidfile
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
DefMemPerCPU=100
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,default_queue_depth=500
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
{storage}
GresTypes=gpu
Licenses=matlab:2
JobRequeue=1
MinJobAge=300
MaxJobCount=40000
KillWait=10
AuthInfo=cred_expire=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=300
MessageTimeout=60
BatchStartTimeout=120
NodeName=n[1-{len(NODES)}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[27001-{27000 + len(NODES)}] CPUs=8 RealMemory=16000 Gres=gpu:{GPUS} State=UNKNOWN
NodeName=bare1 NodeHostname={host} NodeAddr=127.0.0.1 Port=27009 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=n[1-{len(NODES)}] Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n1 MaxTime=10 MaxNodes=1 State=UP
PartitionName=nomem Nodes=bare1 MaxTime=INFINITE DefMemPerCPU=0 State=UP
PartitionName=closed Nodes=n4 State=DOWN
PartitionName=urgent Nodes=n2 MaxTime=10 PriorityTier=10 State=UP
PartitionName=frozen Nodes=n4 State=INACTIVE
"""


def gres_conf(state: Path) -> str:
    """``gres.conf``: character devices stand for GPUs."""
    return f"NodeName=n[1-{len(NODES)}] Name=gpu File={state}/fakegpu[0-{GPUS - 1}]\n"


def slurmdbd_conf(state: Path) -> str:
    """``slurmdbd.conf``."""
    return f"""AuthType=auth/munge
DbdHost=localhost
DbdPort=26819
SlurmUser=root
LogFile={state}/slurmdbd.log
PidFile={state}/slurmdbd.pidfile
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""
