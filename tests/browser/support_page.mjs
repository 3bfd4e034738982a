// tests/browser/support_page.mjs - what is measured inside the page. Each function runs in the browser (page.evaluate),
// so it may use nothing of this file but its own body.
//
// Contrast follows WCAG 2: relative luminance, 4.5:1, and 3:1 for large text; what is see-through is laid over what is
// behind it. Disabled controls are excepted, as there.

// What sticks out on the right, as "tag.class"; empty when the page does not scroll sideways.
export function sidewaysScroll() {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) {
        return [];
    }
    return [...document.querySelectorAll("body *")]
        .filter((element) => element.getBoundingClientRect().right > width + 1)
        .slice(0, 8)
        .map((element) => `${element.tagName.toLowerCase()}.${element.className}`);
}

export function contrastFaults() {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (text) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, bottom) => [0, 1, 2].map((i) => top[i] * top[3] + bottom[i] * (1 - top[3]));
    const backgroundOf = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) {
            layers.push(rgba(getComputedStyle(at).backgroundColor));
        }
        return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const luminance = (colour) => {
        const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = colour.map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const faults = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
        if (!own || !element.checkVisibility() || element.disabled || element.closest(".visually-hidden")) {
            continue;
        }
        const style = getComputedStyle(element);
        const behind = backgroundOf(element);
        const [light, dark] = [luminance(over(rgba(style.color), behind)), luminance(behind)].sort((a, b) => b - a);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < (large ? 3 : 4.5)) {
            faults.push(`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
        }
    }
    return faults;
}

// Controls that a person who only listens could not tell apart.
export function namelessControls() {
    const named = (element) =>
        element.getAttribute("aria-label") ||
        element.getAttribute("aria-labelledby") ||
        element.labels?.length > 0 ||
        (element.matches("a, button, summary") && element.textContent.trim());
    return [...document.querySelectorAll("a, button, input, select, textarea, summary")]
        .filter((element) => !named(element))
        .map((element) => element.outerHTML.slice(0, 120));
}

// Drops a file onto the element as a person does: with drag events that carry it.
export async function dropFile(page, selector, name, buffer) {
    const carried = await page.evaluateHandle(
        ([text, fileName]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], fileName, { type: "application/jsonl" }));
            return transfer;
        },
        [buffer.toString("utf8"), name],
    );
    for (const event of ["dragenter", "dragover", "drop"]) {
        await page.dispatchEvent(selector, event, { dataTransfer: carried });
    }
}
