// support_hosts.mjs - several machines on one: network namespaces with names of their own, joined by a switch
// whose cables can be pulled. Run directories lie on the disk that all of them see.
//
// Needs root. Everything lives in namespaces with this process's id in their names; removeHosts() takes all of it
// away, processes first. Every machine also has an address that all the others have too (as bridges of containers
// do) and that leads nowhere: whoever looks for another machine must find the right one.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ENGINE } from "../engine/support.mjs";
import { SETTINGS, watchChild } from "./support_ranks.mjs";

const NAME = `plim${process.pid}`;
const SWITCH = `${NAME}-switch`;
const made = [];

function ip(...words) {
    const { status, stderr, error } = spawnSync("ip", words, { encoding: "utf8" });
    assert.equal(status, 0, `ip ${words.join(" ")}: ${stderr ?? error}`);
}

// Why there can be no hosts here, or "".
export function hostsMissing() {
    if (process.getuid() !== 0) return "network namespaces need root";
    if (spawnSync("ip", ["-V"]).status !== 0) return "there is no program ip (iproute2)";
    const made = spawnSync("ip", ["netns", "add", SWITCH], { encoding: "utf8" });
    if (made.status !== 0) return `no network namespaces here: ${made.stderr.trim()}`;
    const bridge = spawnSync("ip", ["-n", SWITCH, "link", "add", "sw", "type", "bridge"], { encoding: "utf8" });
    spawnSync("ip", ["netns", "del", SWITCH]);
    return bridge.status === 0 ? "" : `no bridges here: ${bridge.stderr.trim()}`;
}

function addHost(index) {
    const name = `host${index}`;
    const space = `${NAME}-${name}`;
    const address = `10.83.0.${index}`;
    made.unshift(space); // the switch last
    ip("netns", "add", space);
    ip("-n", space, "link", "set", "lo", "up");
    ip("-n", space, "link", "add", "docker0", "type", "bridge");
    ip("-n", space, "addr", "add", "172.17.0.1/16", "dev", "docker0");
    ip("-n", space, "link", "set", "docker0", "up");
    ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", SWITCH);
    ip("-n", SWITCH, "link", "set", name, "master", "sw", "up");
    ip("-n", space, "addr", "add", `${address}/24`, "dev", "eth0");
    ip("-n", space, "link", "set", "eth0", "up");
    return { name, space, address };
}

export function addHosts(count) {
    made.push(SWITCH);
    ip("netns", "add", SWITCH);
    ip("-n", SWITCH, "link", "add", "sw", "type", "bridge");
    ip("-n", SWITCH, "link", "set", "sw", "up");
    return Array.from({ length: count }, (_, i) => addHost(i + 1));
}

export const pullCable = (host) => ip("-n", SWITCH, "link", "set", host.name, "down");
export const plugCable = (host) => ip("-n", SWITCH, "link", "set", host.name, "up");

// What `host` sends to `other` is lost from now on, or again arrives.
export const loseWay = (host, other) => ip("-n", host.space, "route", "add", "blackhole", `${other.address}/32`);
export const findWay = (host, other) => ip("-n", host.space, "route", "del", "blackhole", `${other.address}/32`);

const pidsIn = (space) =>
    spawnSync("ip", ["netns", "pids", space], { encoding: "utf8" }).stdout.split("\n").filter(Boolean).map(Number);

// What still runs on these hosts: "pid command".
export function leftOn(hosts) {
    return hosts.flatMap(({ space }) => pidsIn(space)).flatMap((pid) => {
        try {
            return `${pid} ${readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ")}`;
        } catch {
            return []; // it has just ended
        }
    });
}

// Also after an addHosts that failed half way.
export function removeHosts() {
    for (const space of made.splice(0)) {
        for (const pid of pidsIn(space)) process.kill(pid, "SIGKILL");
        spawnSync("ip", ["netns", "del", space]);
    }
    const left = spawnSync("ip", ["netns", "list"], { encoding: "utf8" }).stdout;
    assert.ok(!left.includes(NAME), `namespaces are left: ${left}`);
}

// The words that run a command on a host, under its name and in its network; the process id stays that of the child.
// (`ip netns exec` would take the control groups away, which Slurm wants.)
const enter = (host) => ["nsenter", `--net=/run/netns/${host.space}`, "unshare", "--uts"];
export const wordsOn = (host) => [...enter(host), "sh", "-c", `hostname ${host.name}; exec "$@"`, "on"];

export function startOn(host, command, environment = {}) {
    const [program, ...words] = [...wordsOn(host), ...command];
    return watchChild(
        spawn(program, words, {
            stdio: ["ignore", "ignore", "pipe"],
            env: { ...process.env, ...SETTINGS, ...environment },
        }),
    );
}

// Rank r on hosts[where[r]], as any launcher would: RANK and WORLD_SIZE, and nothing else.
export function startByName(folder, hosts, where, environment = {}) {
    return where.map((h, rank) =>
        startOn(hosts[h], [ENGINE, "run", folder], {
            RANK: String(rank),
            WORLD_SIZE: String(where.length),
            ...environment,
        }),
    );
}

// A hostfile, and a program that mpirun takes for ssh.
export function mpiFiles(folder, hosts, where) {
    const lines = hosts.map((host, h) => `${host.address} slots=${where.filter((w) => w === h).length}\n`);
    const agent = join(folder, "agent.sh");
    const hostfile = join(folder, "hosts");
    const cases = hosts.map((host) => `${host.address}) space=${host.space} name=${host.name} ;;`);
    writeFileSync(hostfile, lines.filter((line) => !line.endsWith("slots=0\n")).join(""));
    writeFileSync(
        agent,
        `#!/bin/sh\ncase $1 in ${cases.join(" ")} *) exit 9 ;; esac\nshift\n` +
            `exec nsenter --net=/run/netns/$space unshare --uts sh -c "hostname $name; $*"\n`,
    );
    chmodSync(agent, 0o755);
    const network = { OMPI_MCA_btl_tcp_if_include: "eth0", OMPI_MCA_oob_tcp_if_include: "eth0" };
    return { hostfile, environment: { OMPI_MCA_plm_rsh_agent: agent, ...network } };
}

export function startByMpi(folder, hosts, where, environment = {}) {
    const files = mpiFiles(folder, hosts, where);
    const command = ["mpirun", "--hostfile", files.hostfile, "-np", String(where.length), ENGINE, "run", folder];
    return [startOn(hosts[0], command, { ...files.environment, ...environment })];
}
