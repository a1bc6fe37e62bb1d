/** The one way to ask: the same requests go to the local server, or to the same service inside the browser. */

let spoken = "en";

/** From now on replies are asked for in a language. */
export function speakIn(language) {
  spoken = language;
}

/** A path that says the language of its reply; English is not said. */
function inLanguage(path) {
  if (spoken === "en" || /[?&]lang=/.test(path)) return path;
  return `${path}${path.includes("?") ? "&" : "?"}lang=${spoken}`;
}

/** What the service refused, in its own sentence; `sentence` is the same in English, which names the options. */
export class Refused extends Error {
  constructor(status, reply) {
    super(reply.said ?? reply.message ?? `HTTP ${status}`);
    this.sentence = reply.message ?? "";
    this.status = status;
    this.kind = reply.error ?? "Error";
  }
}

const LINES = "application/x-ndjson";

/** A reply in lines: how far it is, told to `looked`, and in the last one what it comes to. */
async function inLines(reply, looked) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused(502, { message: "the server broke off" });
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((text) => JSON.parse(text))) {
      if (line.status !== undefined)
        return { status: line.status, type: "application/json", blob: new Blob([JSON.stringify(line.document)]) };
      looked(line);
    }
  }
}

async function overFetch({ method, path, type, body, signal, looked }) {
  const headers = { ...(body === undefined ? {} : { "content-type": type }), ...(looked ? { accept: LINES } : {}) };
  const reply = await fetch(path, { method, body, headers, signal, credentials: "omit" });
  if (looked && reply.headers.get("content-type")?.startsWith(LINES)) return inLines(reply, looked);
  return { status: reply.status, type: reply.headers.get("content-type") ?? "", blob: await reply.blob() };
}

const inside = document.getElementById("prepared"); // in the static site: request -> its reply, or where it lies
const prepared = JSON.parse(inside?.textContent ?? "{}");

/** A reply that the static site brought along; null where it has none. */
async function preparedReply({ method, path, type, body }) {
  const question = type === "application/json" && JSON.stringify(Object.entries(JSON.parse(body)).sort(([one], [other]) => (one < other ? -1 : 1)));
  const known = prepared[[method, path, question].filter(Boolean).join(" ")];
  if (typeof known === "string") return overFetch({ method: "GET", path: known });
  return known ? { status: 200, type: "application/json", blob: new Blob([JSON.stringify(known)]) } : null;
}

/** `pyodide.js` starts the worker; it is there in the static site only. */
async function overPyodide(asked) {
  const known = await preparedReply(asked);
  if (known) return known;
  const { request } = await import("./pyodide.js");
  return request(asked);
}

const TRANSPORTS = { fetch: overFetch, pyodide: overPyodide };
const chosen = document.querySelector('meta[name="vramcast-backend"]')?.content ?? "fetch";

/** Whether answers are computed in this browser. */
export const LOCAL = chosen === "pyodide";

function sent(body) {
  if (body === undefined) return {};
  const raw = body instanceof Blob || body instanceof ArrayBuffer || ArrayBuffer.isView(body);
  return raw ? { type: "application/octet-stream", body } : { type: "application/json", body: JSON.stringify(body) };
}

async function refusal(status, blob) {
  try {
    return new Refused(status, JSON.parse(await blob.text()));
  } catch {
    return new Refused(status, {});
  }
}

/**
 * The reply to a question.
 *
 * @param {string} path  "/api/train", with its query
 * @param {object|Blob|undefined} body  an object goes as JSON, bytes as they are; nothing: a GET
 * @param {{signal?: AbortSignal, as?: "json"|"blob", looked?: (far: {looked: number, front: object[]}) => void}} how
 *   `looked`: told how far a search is
 * @returns the document, or the file as a Blob with its type
 * @throws Refused with the service's sentence
 */
export async function ask(path, body, { signal, as = "json", looked } = {}) {
  const method = body === undefined ? "GET" : "POST";
  const language = spoken;
  const reply = await TRANSPORTS[chosen]({ method, path: inLanguage(path), ...sent(body), signal, looked });
  if (reply.status !== 200) throw await refusal(reply.status, reply.blob);
  if (as === "blob") return reply.blob;
  const answer = JSON.parse(await reply.blob.text());
  questions.set(answer, { path, body, language });
  return answer;
}

const questions = new WeakMap(); // answer -> what it answers, and in which language

/** The document that the command line prints with --json: of an answer in another language the English one. */
export async function inEnglish(answer) {
  const { path, body, language } = questions.get(answer);
  return language === "en" ? answer : ask(`${path}${path.includes("?") ? "&" : "?"}lang=en`, body);
}

const kept = new Map();

/** The reply to a GET that does not change while the page is open: catalogues, options, words. */
export function askOnce(path) {
  const asked = inLanguage(path);
  if (!kept.has(asked))
    kept.set(
      asked,
      ask(asked).catch((error) => {
        kept.delete(asked);
        throw error;
      }),
    );
  return kept.get(asked);
}
