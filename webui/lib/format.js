// lib/format.js - numbers, sizes and times as a person reads them, in the person's own locale.
//
// Pure functions. Units are those of the API: bytes, seconds, unix seconds. What is unknown (null, undefined, not
// finite) is an en dash, never 0 and never NaN.
const UNKNOWN = "–";
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function formatNumber(value, digits = 0) {
    if (!isNumber(value)) {
        return UNKNOWN;
    }
    return value.toLocaleString(undefined, {
        minimumFractionDigits: digits,
        maximumFractionDigits: digits,
    });
}

// About `digits` significant digits: 2.3104, 0.01234, 1,234.
export function formatSignificant(value, digits = 4) {
    if (!isNumber(value)) {
        return UNKNOWN;
    }
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) {
        return formatScientific(value, Math.min(digits, 3));
    }
    return value.toLocaleString(undefined, { maximumSignificantDigits: digits });
}

// A loss: always the same digits, so that it does not dance while it falls.
export function formatLoss(value) {
    if (!isNumber(value) || Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4) {
        return formatSignificant(value, 4);
    }
    return value.toLocaleString(undefined, {
        minimumSignificantDigits: 4,
        maximumSignificantDigits: 4,
    });
}

// 2e-4, 1.25e-5: the way people write learning rates.
export function formatScientific(value, digits = 3) {
    if (!isNumber(value)) {
        return UNKNOWN;
    }
    if (value === 0) {
        return "0";
    }
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa).toLocaleString(undefined)}e${Number(exponent)}`;
}

export function formatLearningRate(value) {
    return isNumber(value) && Math.abs(value) >= 0.01
        ? formatSignificant(value, 3)
        : formatScientific(value, 3);
}

export function formatCompact(value) {
    return value.toLocaleString(undefined, { notation: "compact", maximumFractionDigits: 1 });
}

export function formatCount(value) {
    return isNumber(value) && Math.abs(value) >= 1e4 ? formatCompact(value) : formatNumber(value);
}

export function formatBytes(bytes) {
    if (!isNumber(bytes)) {
        return UNKNOWN;
    }
    let value = bytes;
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < BYTE_UNITS.length - 1) {
        value /= 1024;
        unit++;
    }
    const digits = unit === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
    return `${formatNumber(value, digits)} ${BYTE_UNITS[unit]}`;
}

// 8 s, 4 min 10 s, 3 h 05 min, 2 d 4 h.
export function formatDuration(seconds) {
    if (!isNumber(seconds) || seconds < 0) {
        return UNKNOWN;
    }
    if (seconds < 1) {
        return "< 1 s";
    }
    const s = Math.round(seconds);
    const two = (n) => String(n).padStart(2, "0");
    if (s < 60) {
        return `${s} s`;
    }
    if (s < 3600) {
        return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
    }
    if (s < 86400) {
        return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
    }
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function formatPercent(fraction, digits = 0) {
    if (!isNumber(fraction)) {
        return UNKNOWN;
    }
    return fraction.toLocaleString(undefined, {
        style: "percent",
        minimumFractionDigits: digits,
        maximumFractionDigits: digits,
    });
}

export function formatDateTime(unixSeconds) {
    if (!isNumber(unixSeconds)) {
        return UNKNOWN;
    }
    return new Date(unixSeconds * 1000).toLocaleString(undefined, {
        dateStyle: "medium",
        timeStyle: "short",
    });
}

export function formatClock(unixSeconds) {
    if (!isNumber(unixSeconds)) {
        return UNKNOWN;
    }
    return new Date(unixSeconds * 1000).toLocaleTimeString(undefined, {
        hour: "2-digit",
        minute: "2-digit",
        second: "2-digit",
    });
}

// "3 minutes ago", in the person's language.
export function formatAgo(unixSeconds, nowSeconds = Date.now() / 1000) {
    if (!isNumber(unixSeconds)) {
        return UNKNOWN;
    }
    const ago = Math.max(0, nowSeconds - unixSeconds);
    const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
    if (ago < 60) {
        return relative.format(-Math.round(ago), "second");
    }
    if (ago < 3600) {
        return relative.format(-Math.round(ago / 60), "minute");
    }
    if (ago < 86400) {
        return relative.format(-Math.round(ago / 3600), "hour");
    }
    return formatDateTime(unixSeconds);
}

// A sentence as the engine says it in passing, made to stand alone: "not enough" -> "Not enough."
export function sentence(text) {
    const trimmed = (text ?? "").trim();
    return trimmed && `${trimmed.charAt(0).toUpperCase()}${trimmed.slice(1)}${/[.!?]$/.test(trimmed) ? "" : "."}`;
}

// "learning_rate" -> "Learning rate"; the key itself stays visible beside it wherever it matters.
export function humanize(key) {
    const words = key.replace(/[._]+/g, " ").trim();
    return words.charAt(0).toUpperCase() + words.slice(1);
}
