// tests/dist/groups.mjs - sums, pieces and messages of every group of every mesh that a world can be cut into, in
// every type of number, against what they must give: bit by bit (group_tool.c).
//
// The worlds are started by mpirun, as a person would.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { check, ENGINE, finish, newFolder, skip } from "../engine/support.mjs";
import { hasMpi, SETTINGS } from "./support_ranks.mjs";

const TOOL = join(ENGINE, "..", "group_tool");
const full = process.argv.includes("--full");

for (const world of full ? [1, 2, 3, 4, 6, 8] : [1, 2, 4]) {
    if (world > 1 && !hasMpi) {
        skip(`${world} ranks`, "this build has no plimsoll-mpi.so, or there is no mpirun");
        continue;
    }
    await check(`${world} ranks: every group of every mesh`, () => {
        const [command, ...first] = world > 1 ? ["mpirun", "-n", String(world), TOOL] : [TOOL];
        const end = spawnSync(command, [...first, newFolder(), "cpu"], {
            encoding: "utf8",
            timeout: 240_000,
            env: { ...process.env, ...SETTINGS },
        });
        assert.equal(end.status, 0, end.stdout + end.stderr);
        const lines = end.stdout.match(/[1-9]\d* numbers, 0 wrong/g);
        assert.equal(lines?.length, world, end.stdout);
    });
}
finish();
