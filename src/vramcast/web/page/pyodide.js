/**
 * Answers computed in this browser: a worker runs the service under Pyodide, one question at a time. A question that
 * is called off before its turn is never asked; one that takes too long ends with its worker, and the next starts anew.
 */

const [runtime, core, whole] = document.querySelector('meta[name="vramcast-python"]').content.split(" ");
const LONGEST_MS = 120_000;
const GRACE_MS = 1_000; // a question called off while it runs may still end by itself

const waiting = [];
let worker = null;
let running = null;

const reply = (status, error, message) =>
  ({ status, type: "application/json", blob: new Blob([JSON.stringify({ error, message })]) });

function stopped() {
  worker?.terminate();
  worker = null;
}

/** Tells the page how far Python is: what is fetched of the whole [bytes], whether it is there, or why it is not. */
function tell(detail) {
  dispatchEvent(new CustomEvent("vramcast-python", { detail: { whole: Number(whole), ...detail } }));
}

function ended(settle, value) {
  const asked = running;
  clearTimeout(asked.timer);
  running = null;
  asked[settle](value);
  next();
}

function answered({ data }) {
  if (data.looked !== undefined) running?.looked?.(data.looked);
  else if (data.fetched !== undefined) tell({ fetched: data.fetched });
  else if (data.ready) tell({ ready: true });
  else if (data.failed) {
    stopped();
    tell({ failed: data.failed });
    if (running) ended("resolve", reply(500, "InternalError", `Python could not start in this browser: ${data.failed}`));
  } else if (data.started) {
    clearTimeout(running.timer); // fetching and starting Python is not the question's time
    running.timer = setTimeout(overdue, LONGEST_MS);
  } else {
    ended("resolve", { status: data.status, type: data.type, blob: new Blob([data.body], { type: data.type }) });
  }
}

function overdue() {
  stopped();
  const message = `the answer took more than ${LONGEST_MS / 1000} s in this browser; ask the command line`;
  ended("resolve", reply(504, "TooLong", message));
}

function begun() {
  worker = new Worker(new URL(`pyodide_worker.js?runtime=${runtime}&core=${core}`, import.meta.url), { type: "module" });
  worker.addEventListener("message", answered);
  worker.addEventListener("error", (event) => answered({ data: { failed: event.message || "its files are missing" } }));
}

/** Starts Python before anything is asked. */
export function start() {
  if (!worker) begun();
}

function next() {
  if (running || !waiting.length) return;
  running = waiting.shift();
  start();
  worker.postMessage(running.request);
}

function calledOff(asked) {
  const place = waiting.indexOf(asked);
  if (place >= 0) waiting.splice(place, 1);
  asked.reject(new DOMException("called off", "AbortError"));
  if (running !== asked) return;
  clearTimeout(asked.timer);
  asked.timer = setTimeout(() => { stopped(); ended("resolve"); }, GRACE_MS);
}

/**
 * The reply to one request.
 *
 * @param {{method: string, path: string, type?: string, body?: string|Blob|ArrayBuffer, signal?: AbortSignal}} asked
 * @returns {Promise<{status: number, type: string, blob: Blob}>}
 */
export async function request({ method, path, type = "", body, signal, looked }) {
  const [name, query = ""] = path.split("?");
  const bytes = body === undefined ? new Uint8Array() : new Uint8Array(await new Blob([body]).arrayBuffer());
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const asked = { request: { method, path: name, query, type, bytes }, looked, resolve, reject, timer: 0 };
    signal?.addEventListener("abort", () => calledOff(asked), { once: true });
    waiting.push(asked);
    next();
  });
}
