/** The service in a worker: Python, vramcast and what it needs come from this site's own files and nowhere else. */

import { loadPyodide } from "./pyodide/pyodide.mjs";

async function service() {
  const core = fetch(new URL("core.zip", import.meta.url)).then((reply) => {
    if (!reply.ok) throw new Error(`core.zip: HTTP ${reply.status}`);
    return reply.arrayBuffer();
  });
  const python = await loadPyodide();
  python.unpackArchive(await core, "zip");
  return python.runPython(`
    from vramcast.web.service import answered

    def ask(method, path, query, kind, body):
        reply = answered(method, path, query, {"content-type": kind} if kind else {}, body.to_bytes())
        return reply.status, reply.content_type, reply.body

    ask
  `);
}

const starting = service();

self.addEventListener("message", async ({ data }) => {
  try {
    const ask = await starting;
    self.postMessage({ started: true });
    const found = ask(data.method, data.path, data.query, data.type, data.bytes);
    const [status, type, body] = found.toJs();
    found.destroy();
    self.postMessage({ status, type, body });
  } catch (error) {
    self.postMessage({ failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
});
