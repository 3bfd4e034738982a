// tests/api/http.mjs - the HTTP door: bodies in every shape, limits, paths, foreign pages, slow clients.
//
// Raw sockets where a well-behaved client would not do what has to be survived. What is refused must be
// refused with a reason and leave nothing behind.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";
import {
    call,
    createChecks,
    newFolder,
    raw,
    removeFolder,
    rows,
    startServer,
    until,
    upload,
} from "./support_server.mjs";

const { check, close } = createChecks();
const data = newFolder();
const web = path.join(newFolder(), "web");
mkdirSync(path.join(web, "lib"), { recursive: true });
writeFileSync(path.join(web, "index.html"), "<!doctype html><title>page</title>");
writeFileSync(path.join(web, "lib", "app.js"), "export const a = 1;");
writeFileSync(path.join(web, "..", "secret.txt"), "secret");
symlinkSync(path.join(web, "..", "secret.txt"), path.join(web, "link.txt"));
const server = await startServer({ data, args: ["--web", web, "--max-upload", "2MiB"] });
const host = `127.0.0.1:${server.port}`;
const stored = () => readdirSync(path.join(data, "files"));

const BOUNDARY = "----edge";
function form(content, { name = "rows.jsonl", purpose = "fine-tune" } = {}) {
    return Buffer.from(
        `--${BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n${purpose}\r\n` +
            `--${BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n` +
            `Content-Type: application/octet-stream\r\n\r\n${content}\r\n--${BOUNDARY}--\r\n`,
    );
}
const head = (extra) =>
    `POST /v1/files HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n` +
    `Content-Type: multipart/form-data; boundary=${BOUNDARY}\r\n${extra}\r\n`;
const statusOf = (text) =>
    Number(/^HTTP\/1\.1 (\d+)/.exec(text.replace(/^HTTP\/1\.1 100[^]*?\r\n\r\n/, ""))?.[1]);
const bodyOf = (text) => {
    const body = text.slice(text.lastIndexOf("\r\n\r\n") + 4);
    return JSON.parse(body.slice(body.indexOf("{"), body.lastIndexOf("}") + 1));
};

await check("a body sent byte by byte arrives whole", async () => {
    const body = form(rows(3));
    const answer = await raw(
        server,
        [head(`Content-Length: ${body.length}\r\n`), ...[...body].map((b) => Buffer.from([b]))],
        { limitMs: 30_000 },
    );
    assert.equal(statusOf(answer), 200, answer);
    const content = await (await fetch(`${server.url}/v1/files/${bodyOf(answer).id}/content`)).text();
    assert.equal(content, rows(3));
});

await check("a chunked body without a length arrives whole", async () => {
    const body = form(rows(5));
    const chunks = [];
    for (let at = 0; at < body.length; at += 7) {
        const piece = body.subarray(at, at + 7);
        chunks.push(
            Buffer.concat([Buffer.from(`${piece.length.toString(16)}\r\n`), piece, Buffer.from("\r\n")]),
        );
    }
    const answer = await raw(server, [head("Transfer-Encoding: chunked\r\n"), ...chunks, "0\r\n\r\n"]);
    assert.equal(statusOf(answer), 200, answer);
    assert.equal(bodyOf(answer).bytes, rows(5).length);
});

await check("content that looks like a boundary is content", async () => {
    const tricky =
        JSON.stringify({ text: `x\r\n--${BOUNDARY}x --${BOUNDARY.slice(0, -1)} \r\n--` }).replaceAll(
            "\\r\\n",
            "\\r\\n",
        ) + "\n";
    const raw_text = `${tricky.slice(0, -1)}\r\n--${BOUNDARY.slice(0, 5)}\n`;
    const body = form(raw_text);
    const answer = await raw(server, [head(`Content-Length: ${body.length}\r\n`), body]);
    const content = await (await fetch(`${server.url}/v1/files/${bodyOf(answer).id}/content`)).text();
    assert.equal(content, raw_text);
});

await check("Expect: 100-continue gets 100 first, then the answer", async () => {
    const body = form(rows(2));
    let sent = false;
    const text = await new Promise((resolve) => {
        let got = "";
        const socket = net.connect(server.port, "127.0.0.1", () =>
            socket.write(head(`Content-Length: ${body.length}\r\nExpect: 100-continue\r\n`)),
        );
        socket.on("data", (piece) => {
            got += piece;
            if (!sent && got.includes("100 Continue")) {
                sent = true;
                socket.write(body);
            }
        });
        socket.on("close", () => resolve(got));
    });
    assert.ok(sent);
    assert.equal(statusOf(text), 200, text);
});

await check("Expect with too large a body is refused with 413 instead of 100", async () => {
    const text = await raw(server, head("Content-Length: 99000000\r\nExpect: 100-continue\r\n"), {
        done: (t) => t.includes("\r\n\r\n{"),
    });
    assert.match(text, /^HTTP\/1\.1 413/);
    assert.ok(!text.includes("100 Continue"));
    assert.match(text, /larger than the limit/);
});

await check(
    "a chunked body over the limit is refused while it is read, and nothing is kept",
    async () => {
        const before = stored().length;
        const piece = Buffer.alloc(65536, 0x61);
        const chunk = Buffer.concat([Buffer.from("10000\r\n"), piece, Buffer.from("\r\n")]);
        const start = form("").subarray(0, form("").indexOf("octet-stream") + 16);
        const text = await raw(server, [
            head("Transfer-Encoding: chunked\r\n"),
            `${start.length.toString(16)}\r\n`,
            start,
            "\r\n",
            ...Array(64).fill(chunk),
            "0\r\n\r\n",
        ]);
        assert.equal(statusOf(text), 413, text.slice(0, 300));
        assert.equal(stored().length, before);
    },
);

await check("a JSON body over one MiB is refused with 413", async () => {
    const big = JSON.stringify({ model: "x".repeat(1 << 20) });
    const answer = await call(server, "POST", "/v1/fine_tuning/jobs", big);
    assert.equal(answer.status, 413);
    assert.equal(answer.body.error.type, "invalid_request_error");
});

await check("an upload that breaks off leaves nothing behind", async () => {
    const before = stored().length;
    const socket = net.connect(server.port, "127.0.0.1");
    socket.write(head("Content-Length: 100000\r\n"));
    socket.write(form(rows(10)).subarray(0, 300));
    await until("the temporary file", 5_000, () => stored().length > before);
    socket.destroy();
    await until("its removal", 5_000, () => stored().length === before);
});

await check("two uploads of one name are two files", async () => {
    const [a, b] = await Promise.all([
        upload(server, rows(1), "same.jsonl"),
        upload(server, rows(2), "same.jsonl"),
    ]);
    assert.notEqual(a.body.id, b.body.id);
    assert.equal(a.body.filename, b.body.filename);
    assert.notEqual(a.body.bytes, b.body.bytes);
});

await check("names that would climb out are only names", async () => {
    for (const name of [
        "../../etc/x",
        "..\\\\x",
        "/abs/x.jsonl",
        "a/../../b",
        "..",
        ".",
        "x.jsonl.",
        "‥/x",
    ]) {
        const body = form(rows(1), { name });
        const answer = await raw(server, [head(`Content-Length: ${body.length}\r\n`), body]);
        assert.equal(statusOf(answer), 200, name + answer);
        const file = JSON.parse(Buffer.from(JSON.stringify(bodyOf(answer)), "latin1").toString("utf8"));
        assert.ok(file.id.startsWith("file-"));
    }
    assert.ok(
        stored().every((name) => /^(file|upload)-[A-Za-z0-9]+\.[a-z.]+$/.test(name)),
        String(stored()),
    );
    assert.ok(!existsSync("/etc/x"));
});

await check("names that are no text are refused", async () => {
    for (const name of ["", "a\u0001b", "x".repeat(600)]) {
        const body = form(rows(1), { name });
        const answer = await raw(server, [head(`Content-Length: ${body.length}\r\n`), body]);
        assert.equal(statusOf(answer), 400, JSON.stringify(name));
    }
});

await check("forms that lack something are refused by name", async () => {
    const empty = await upload(server, "");
    assert.equal(empty.status, 400);
    assert.match(empty.body.error.message, /empty/);
    const purpose = await upload(server, rows(1), "a.jsonl", "assistants");
    assert.equal(purpose.status, 400);
    assert.equal(purpose.body.error.param, "purpose");
    const plain = await call(server, "POST", "/v1/files", "hello", { "Content-Type": "text/plain" });
    assert.equal(plain.status, 400);
    assert.match(plain.body.error.message, /multipart/);
    const cut = form(rows(1)).subarray(0, -6);
    const answer = await raw(server, [head(`Content-Length: ${cut.length}\r\n`), cut]);
    assert.equal(statusOf(answer), 400);
    assert.match(answer, /cut short/);
});

await check("the page is served with type, tag and policy, and 304 the second time", async () => {
    const page = await fetch(`${server.url}/`);
    assert.equal(page.headers.get("content-type"), "text/html; charset=utf-8");
    assert.match(page.headers.get("content-security-policy"), /default-src 'self'/);
    assert.equal(page.headers.get("cache-control"), "no-cache");
    assert.equal(
        (await fetch(`${server.url}/lib/app.js`)).headers.get("content-type"),
        "text/javascript; charset=utf-8",
    );
    const again = await raw(
        server,
        `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n` +
            `If-None-Match: ${page.headers.get("etag")}\r\n\r\n`,
    );
    assert.match(again, /^HTTP\/1\.1 304/);
    const view = await fetch(`${server.url}/jobs/some-view`);
    assert.match(await view.text(), /page/);
    const headOnly = await raw(server, `HEAD / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
    assert.match(headOnly, /^HTTP\/1\.1 200/);
    assert.ok(headOnly.endsWith("\r\n\r\n"));
});

await check("no path leaves the page's folder", async () => {
    const paths = [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/lib/../../secret.txt",
        "/..\\secret.txt",
        "/lib//..//../secret.txt",
        "/%00/secret.txt",
        "/link.txt",
        "/.hidden",
        "/lib/%2e%2e%2f%2e%2e%2fsecret.txt",
        "//etc/passwd",
        "/%",
        "/%zz",
    ];
    for (const target of paths) {
        const text = await raw(
            server,
            `GET ${target} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`,
        );
        assert.ok([400, 404].includes(statusOf(text)), `${target}: ${text.slice(0, 80)}`);
        assert.ok(!text.includes("root:") && !/\r\n\r\nsecret/.test(text), target);
    }
});

await check("encoded slashes in an id do not become path", async () => {
    const answer = await call(server, "GET", "/v1/files/..%2f..%2fplimsoll.db/content");
    assert.equal(answer.status, 404);
});

await check("foreign names and foreign pages are refused, our own page is not", async () => {
    const rebind = await raw(
        server,
        "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    );
    assert.equal(statusOf(rebind), 403);
    const local = await raw(
        server,
        `GET /healthz HTTP/1.1\r\nHost: localhost:${server.port}\r\nConnection: close\r\n\r\n`,
    );
    assert.equal(statusOf(local), 200);
    const post = (origin) =>
        raw(
            server,
            `POST /v1/fine_tuning/jobs HTTP/1.1\r\nHost: ${host}\r\nOrigin: ${origin}\r\n` +
                "Connection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        );
    assert.equal(statusOf(await post("http://evil.example")), 403);
    assert.equal(statusOf(await post("null")), 403);
    assert.equal(statusOf(await post(server.url)), 400); // it got as far as the body
});

await check("unknown paths and methods have OpenAI's envelope and a request id", async () => {
    const missing = await call(server, "GET", "/v1/nothing");
    assert.equal(missing.status, 404);
    assert.deepEqual(Object.keys(missing.body.error).sort(), ["code", "message", "param", "type"]);
    assert.match(missing.headers.get("x-request-id"), /^req_/);
    const wrong = await call(server, "PUT", "/v1/files", {});
    assert.equal(wrong.status, 405);
    assert.match(wrong.headers.get("allow"), /GET/);
});

await check("slow clients do not keep others waiting", async () => {
    const idle = Array.from({ length: 60 }, () => {
        const socket = net.connect(server.port, "127.0.0.1", () =>
            socket.write("GET /v1/models HTTP/1.1\r\nHost: "),
        );
        socket.on("error", () => {});
        return socket;
    });
    const start = Date.now();
    assert.equal((await call(server, "GET", "/healthz")).status, 200);
    assert.ok(Date.now() - start < 1_000);
    idle.forEach((socket) => socket.destroy());
});

await check("files are listed in pages, in both orders", async () => {
    const all = (await call(server, "GET", "/v1/files")).body;
    const first = (await call(server, "GET", "/v1/files?limit=2")).body;
    assert.equal(first.data.length, 2);
    assert.equal(first.has_more, true);
    assert.equal(first.last_id, first.data[1].id);
    const next = (await call(server, "GET", `/v1/files?limit=2&after=${first.last_id}`)).body;
    assert.deepEqual(
        [...first.data, ...next.data].map((f) => f.id),
        all.data.slice(0, 4).map((f) => f.id),
    );
    const rising = (await call(server, "GET", "/v1/files?order=asc")).body;
    assert.deepEqual(
        rising.data.map((f) => f.id),
        all.data.map((f) => f.id).reverse(),
    );
    assert.equal((await call(server, "GET", "/v1/files?limit=0")).status, 400);
});

await check(
    "with an API key nothing answers without it, but the page and the health check",
    async () => {
        const folder = newFolder();
        const keys = path.join(folder, "keys");
        writeFileSync(keys, "# keys\nsecret-key\n");
        const guarded = await startServer({
            data: path.join(folder, "data"),
            args: ["--web", web, "--api-key-file", keys],
        });
        assert.equal((await call(guarded, "GET", "/v1/models")).status, 401);
        assert.equal(
            (await call(guarded, "GET", "/v1/models", undefined, { Authorization: "Bearer secret-keX" }))
                .status,
            401,
        );
        assert.equal(
            (await call(guarded, "GET", "/v1/models", undefined, { Authorization: "Bearer secret-key" }))
                .status,
            200,
        );
        assert.equal(
            (
                await call(guarded, "GET", "/v1/models", undefined, {
                    Cookie: "a=b; plimsoll_key=secret-key",
                })
            ).status,
            200,
        );
        assert.equal((await call(guarded, "GET", "/")).status, 200);
        assert.equal((await call(guarded, "GET", "/healthz")).status, 200);
        await guarded.stop();
        removeFolder(folder);
    },
);

await server.stop();
removeFolder(data);
removeFolder(path.join(web, ".."));
close();
