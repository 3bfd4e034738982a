// lib/theme.js - light, dark, or as the system has it.
//
// theme.js (no module) sets the stored choice before the first paint; this changes it. `themeInUse` is what is on the
// screen now, for drawings that cannot use CSS variables (canvas).
import { createSignal } from "./signal.js";

const NAME = "plimsoll-theme";
export const THEMES = ["system", "light", "dark"];
const darkSystem = matchMedia("(prefers-color-scheme: dark)");

const stored = () => document.documentElement.dataset.theme ?? "system";
const inUse = () => (stored() === "system" ? (darkSystem.matches ? "dark" : "light") : stored());

export const themeChoice = createSignal(stored());
export const themeInUse = createSignal(inUse());

darkSystem.addEventListener("change", () => themeInUse.set(inUse()));

export function chooseTheme(theme) {
    if (theme === "system") {
        delete document.documentElement.dataset.theme;
    } else {
        document.documentElement.dataset.theme = theme;
    }
    try {
        if (theme === "system") {
            localStorage.removeItem(NAME);
        } else {
            localStorage.setItem(NAME, theme);
        }
    } catch {
        // Without storage the choice lasts until the page is closed.
    }
    themeChoice.set(theme);
    themeInUse.set(inUse());
}
