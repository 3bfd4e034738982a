// support.mjs - what the tests of memory share: the engine's questions and runs, and the counting of checks.
//
// It is that of the engine's end-to-end tests: one way to start an engine, one kind of scratch folder.
export { ask, check, CHAT, ENGINE, events, finish, MODEL, newFolder, newRun, run, skip } from "../engine/support.mjs";
