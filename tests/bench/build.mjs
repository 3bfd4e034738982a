// build.mjs - how long a developer waits: configuring and compiling everything from nothing, and each group
// of tests.
//
// The build goes to build-bench, which is removed afterwards. The times of the tests are those that
// tests/run wrote down when they last ran (build/log/GROUP.json), because running them again would measure
// the same thing twice.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { ROOT } from './support.mjs';

function timed(command, args) {
    const start = process.hrtime.bigint();
    const result = spawnSync(command, args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 1 << 28 });
    if (result.status !== 0) throw new Error(`${command} ${args.join(' ')}: ${result.stderr}`);
    return Number(process.hrtime.bigint() - start) / 1e9;
}

function buildFromNothing() {
    const folder = 'build-bench';
    rmSync(join(ROOT, folder), { recursive: true, force: true });
    try {
        const configure = timed('cmake', ['-S', '.', '-B', folder, '-DCMAKE_BUILD_TYPE=Release']);
        const compile = timed('cmake', ['--build', folder, '-j', String(availableParallelism())]);
        return { case: 'build from nothing', seconds: configure + compile };
    } finally {
        rmSync(join(ROOT, folder), { recursive: true, force: true });
    }
}

function testTimes() {
    const folder = join(ROOT, 'build', 'log');
    if (!existsSync(folder)) return [];
    return readdirSync(folder)
        .filter((name) => name.endsWith('.json'))
        .sort()
        .map((name) => {
            const group = JSON.parse(readFileSync(join(folder, name), 'utf8'));
            return { case: `test ${group.group}`, seconds: group.seconds, tests: group.passed + group.failed };
        });
}

export async function* cases() {
    yield buildFromNothing();
    yield* testTimes();
}
