// lib/devices.js - the key `device` as a choice of what this machine has.
//
// Pure functions over what GET /v1/devices sends ({ data: [{ id, name, total_bytes, free_bytes, capability, usable,
// reason }], driver, reason }). Without an answer the key stays what it is: a text that the engine judges.
import { formatBytes } from "./format.js";

// "cuda:0 · NVIDIA H200 · 139 GiB, 120 GiB free"; of a long name what is before the first comma.
export function deviceLabel({ id, name, total_bytes: total, free_bytes: free }) {
    const there = Number.isFinite(free) ? `, ${formatBytes(free)} free` : "";
    const memory = total > 0 ? `${formatBytes(total)}${there}` : "";
    return [id, name?.split(",")[0], memory].filter(Boolean).join(" · ");
}

// Why there is less to choose from than a reader may expect: no GPU at all, or one that cannot be used.
export function deviceNote(devices) {
    const refused = devices.data.filter((device) => !device.usable && device.reason);
    const reasons = [devices.reason, ...refused.map((device) => device.reason)].filter(Boolean);
    const gpu = devices.data.some((device) => device.usable && device.id !== "cpu");
    return reasons.length > 0 ? `${gpu ? "" : "No GPU can be used here: "}${reasons.join(" ")}` : "";
}

// The table of GET /v1/spec with `device` as a choice. `kept` is a device that a repeated run names: it stays in the
// list, so that the form shows what was chosen and the engine says why it cannot be had.
export function withDevices(keys, devices, kept = null) {
    if (!devices?.data?.length) {
        return keys;
    }
    const usable = devices.data.filter((device) => device.usable);
    const labels = Object.fromEntries(usable.map((device) => [device.id, deviceLabel(device)]));
    if (kept && !labels[kept]) {
        labels[kept] = `${kept} · not here now`;
    }
    const choice = { type: "choice", choices: Object.keys(labels), labels, note: deviceNote(devices) };
    return keys.map((key) => (key.path === "device" ? { ...key, ...choice } : key));
}
