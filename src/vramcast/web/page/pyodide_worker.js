/** The service in a worker: Python, vramcast and what it needs come from this site's own files and nowhere else. */

const given = new URLSearchParams(self.location.search);
const beside = (name) => new URL(name, import.meta.url);
const fetchOfBrowser = self.fetch.bind(self);
let fetched = 0;

/** As the browser's; what arrives is counted and told. */
self.fetch = async (...asked) => {
  const reply = await fetchOfBrowser(...asked);
  if (!reply.body) return reply;
  const counting = new TransformStream({
    transform(chunk, out) {
      fetched += chunk.byteLength;
      self.postMessage({ fetched });
      out.enqueue(chunk);
    },
  });
  const { status, statusText, headers } = reply;
  return new Response(reply.body.pipeThrough(counting), { status, statusText, headers });
};

async function service() {
  const core = self.fetch(beside(given.get("core"))).then((reply) => {
    if (!reply.ok) throw new Error(`${given.get("core")}: HTTP ${reply.status}`);
    return reply.arrayBuffer();
  });
  const indexURL = beside(`${given.get("runtime")}/`).href;
  const { loadPyodide } = await import(`${indexURL}pyodide.mjs`);
  const python = await loadPyodide({ indexURL });
  python.unpackArchive(await core, "zip");
  return python.runPython(`
    from vramcast.web.service import answered

    def ask(method, path, query, kind, body, looked):
        reply = answered(method, path, query, {"content-type": kind} if kind else {}, body.to_bytes(),
                         looked=lambda line: looked(line.decode()))
        return reply.status, reply.content_type, reply.body

    ask
  `);
}

const looked = (line) => self.postMessage({ looked: JSON.parse(line) });
const failed = (error) => self.postMessage({ failed: String(error.message ?? error).trim().split("\n").at(-1) });
const starting = service();
starting.then(() => self.postMessage({ ready: true }), failed);

self.addEventListener("message", async ({ data }) => {
  const ask = await starting.catch(() => null);
  if (!ask) return; // was told
  try {
    self.postMessage({ started: true });
    const found = ask(data.method, data.path, data.query, data.type, data.bytes, looked);
    const [status, type, body] = found.toJs();
    found.destroy();
    self.postMessage({ status, type, body });
  } catch (error) {
    failed(error);
  }
});
