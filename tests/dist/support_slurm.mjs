// support_slurm.mjs - a real Slurm of a few machines (support_hosts.mjs), for as long as a test runs: munged,
// slurmctld and one slurmd a machine, all with their files in one folder.
//
// Debian's slurm-wlm and munge have all of it; the programs are started by hand, without systemd. Needs root.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { startOn } from "./support_hosts.mjs";

const PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol"];
const FOLDERS = [...process.env.PATH.split(":"), "/usr/sbin", "/sbin"];
const pathOf = (name) => FOLDERS.map((folder) => join(folder, name)).find((path) => existsSync(path));

// Why there is no Slurm here, or "".
export function slurmMissing() {
    const missing = PROGRAMS.filter((name) => !pathOf(name));
    return missing.length ? `${missing.join(", ")} not installed (slurm-wlm, munge)` : "";
}

const configOf = (folder, hosts) => `ClusterName=plimsoll
SlurmctldHost=${hosts[0].name}(${hosts[0].address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=${folder}/munge.sock
CredType=cred/munge
StateSaveLocation=${folder}/state
SlurmdSpoolDir=${folder}/spool.%n
SlurmctldPidFile=${folder}/slurmctld.pid
SlurmdPidFile=${folder}/slurmd.%n.pid
SlurmctldLogFile=${folder}/slurmctld.log
SlurmdLogFile=${folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
${hosts.map((host) => `NodeName=${host.name} NodeAddr=${host.address} CPUs=2 State=UNKNOWN`).join("\n")}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`;

// Starts it; { environment, sinfo() }. Its processes are the hosts': removeHosts ends them.
export async function startSlurm(folder, hosts) {
    for (const name of ["state", ...hosts.map((host) => `spool.${host.name}`)]) mkdirSync(join(folder, name));
    writeFileSync(join(folder, "munge.key"), randomBytes(1024), { mode: 0o400 });
    writeFileSync(join(folder, "slurm.conf"), configOf(folder, hosts));
    const environment = { SLURM_CONF: join(folder, "slurm.conf") };
    const own = ["socket=munge.sock", "pid-file=munge.pid", "log-file=munge.log", "seed-file=munge.seed"];
    const options = own.map((option) => `--${option.replace("=", `=${folder}/`)}`);
    const key = `--key-file=${folder}/munge.key`;
    startOn(hosts[0], [pathOf("munged"), "--foreground", "--force", "--num-threads=1", key, ...options]);
    while (!existsSync(join(folder, "munge.sock"))) await new Promise((resolve) => setTimeout(resolve, 20));
    startOn(hosts[0], [pathOf("slurmctld"), "-D"], environment);
    for (const host of hosts) startOn(host, [pathOf("slurmd"), "-D", "-N", host.name], environment);
    const env = { ...process.env, ...environment };
    const sinfo = () => spawnSync("sinfo", ["-h", "-o", "%D %t"], { encoding: "utf8", env }).stdout;
    const end = Date.now() + 30_000;
    while (sinfo().trim() !== `${hosts.length} idle`) {
        assert.ok(Date.now() < end, `Slurm's machines do not become ready: ${sinfo()}`);
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
    return { environment, sinfo };
}
