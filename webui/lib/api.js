// lib/api.js - how the page talks to the server: JSON in, JSON out, errors that carry the field they are about.
//
// Owns the access key (sessionStorage, asked for once when the server answers 401) and the knowledge whether the server
// can be reached at all (`connection`). A lost connection is a state that heals by itself, never the end of the page.
import { createSignal } from "./signal.js";

const KEY_NAME = "plimsoll-key";

// "up" | "down"; the shell shows "down" as a banner.
export const connection = createSignal("up");
// null, or { wrong, answer(key) } while a person is asked for the access key.
export const keyQuestion = createSignal(null);

// A refusal by the server. `param` names the field, `status` is the HTTP status.
export class ApiError extends Error {
    constructor(message, { status = 0, param = null, code = null } = {}) {
        super(message);
        this.name = "ApiError";
        this.status = status;
        this.param = param;
        this.code = code;
    }
}

// The server could not be reached; trying again later makes sense.
export class ConnectionError extends Error {
    constructor(message) {
        super(message);
        this.name = "ConnectionError";
    }
}

export function accessKey() {
    try {
        return sessionStorage.getItem(KEY_NAME);
    } catch {
        return null;
    }
}

function storeKey(key) {
    try {
        sessionStorage.setItem(KEY_NAME, key);
    } catch {
        // Without storage the key is asked for again after a reload.
    }
}

export function authHeaders() {
    const key = accessKey();
    return key ? { Authorization: `Bearer ${key}` } : {};
}

let asking = null;

// Asks the person for the key; many requests that fail together share one question.
export function askForKey() {
    asking ??= new Promise((resolve) => {
        keyQuestion.set({
            wrong: accessKey() !== null,
            answer(key) {
                storeKey(key);
                asking = null;
                keyQuestion.set(null);
                resolve();
            },
        });
    });
    return asking;
}

// The error that an answer describes; an answer that is not our JSON keeps its HTTP status.
export function errorFrom(status, text) {
    try {
        const { error } = JSON.parse(text);
        if (error && error.message) {
            return new ApiError(error.message, { status, param: error.param, code: error.code });
        }
    } catch {
        // Not JSON: a proxy in between, for example.
    }
    return new ApiError(`The server answered ${status}.`, { status });
}

async function send(method, path, { body, signal } = {}) {
    const headers = { Accept: "application/json", ...authHeaders() };
    if (body !== undefined) {
        headers["Content-Type"] = "application/json";
    }
    try {
        const response = await fetch(path, {
            method,
            headers,
            signal,
            body: body === undefined ? undefined : JSON.stringify(body),
        });
        connection.set("up");
        return response;
    } catch (error) {
        if (error.name === "AbortError") {
            throw error;
        }
        connection.set("down");
        throw new ConnectionError("The server cannot be reached.");
    }
}

// Sends one request; asks for the key and tries again when the server wants one. Returns the JSON answer.
export async function request(method, path, options = {}) {
    let response = await send(method, path, options);
    while (response.status === 401) {
        await askForKey();
        response = await send(method, path, options);
    }
    const text = await response.text();
    if (!response.ok) {
        throw errorFrom(response.status, text);
    }
    return text ? JSON.parse(text) : null;
}

export const get = (path, options) => request("GET", path, options);
export const post = (path, body, options) => request("POST", path, { body, ...options });
export const remove = (path, options) => request("DELETE", path, options);

const JOBS = "/v1/fine_tuning/jobs";
export const jobsPath = (query) => `${JOBS}?${new URLSearchParams(query)}`;
export const jobPath = (id, rest = "") => `${JOBS}/${encodeURIComponent(id)}${rest}`;
export const createJob = (body) => post(JOBS, body);

// Uploads with progress (fetch cannot tell it). onProgress gets a fraction 0..1. Returns the File object.
export function uploadFile(file, { onProgress, signal }) {
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", file, file.name);
    const xhr = new XMLHttpRequest();
    const answer = new Promise((resolve, reject) => {
        xhr.upload.onprogress = (event) => {
            if (event.lengthComputable) {
                onProgress(event.loaded / event.total);
            }
        };
        xhr.onerror = () => {
            reject(new ConnectionError("The connection broke while the file was being sent."));
        };
        xhr.onabort = () => reject(new DOMException("stopped", "AbortError"));
        xhr.onload = () => resolve({ status: xhr.status, text: xhr.responseText });
    });
    signal?.addEventListener("abort", () => xhr.abort());
    xhr.open("POST", "/v1/files");
    for (const [name, value] of Object.entries(authHeaders())) {
        xhr.setRequestHeader(name, value);
    }
    xhr.send(form);
    return answer.then(async ({ status, text }) => {
        if (status === 401) {
            await askForKey();
            return uploadFile(file, { onProgress, signal });
        }
        if (status < 200 || status > 299) {
            throw errorFrom(status, text);
        }
        return JSON.parse(text);
    });
}

// Saves what a path answers as a file. Without a key the browser streams it; with one the page has to fetch it,
// because a link cannot carry the key. `fetched`: always so, for what is small and may not be there.
export async function download(path, filename, { fetched = false } = {}) {
    let href = path;
    if (fetched || accessKey()) {
        const response = await fetch(path, { headers: authHeaders() });
        if (!response.ok) {
            throw errorFrom(response.status, await response.text());
        }
        href = URL.createObjectURL(await response.blob());
    }
    const link = document.createElement("a");
    link.href = href;
    link.download = filename;
    document.body.append(link);
    link.click();
    link.remove();
    if (href !== path) {
        setTimeout(() => URL.revokeObjectURL(href), 60_000);
    }
}
