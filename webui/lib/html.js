// lib/html.js - the one door to Preact and htm.
//
// Every other file takes its tags and hooks from here, so the libraries have one home. `html` is the template tag;
// text put into it is always escaped, and nothing in this page ever sets innerHTML.
import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment } from "../vendor/preact.js";
export {
    useCallback,
    useEffect,
    useErrorBoundary,
    useLayoutEffect,
    useMemo,
    useRef,
    useState,
} from "../vendor/hooks.js";
