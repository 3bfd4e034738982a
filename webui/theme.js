// theme.js - sets the colours before the first paint, so that a dark page never flashes white.
//
// The only script that is not a module: modules run after the page was drawn. The choice "light" or "dark" lives in
// localStorage under "plimsoll-theme"; without one the system decides (prefers-color-scheme).
{
    let theme = null;
    try {
        theme = localStorage.getItem("plimsoll-theme");
    } catch {
        // Storage can be forbidden; then the system decides.
    }
    if (theme === "light" || theme === "dark") {
        document.documentElement.dataset.theme = theme;
    }
}
