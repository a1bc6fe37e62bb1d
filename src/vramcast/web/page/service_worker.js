/**
 * Of the static site: Python's files, whose names say their version, are fetched once; all others are asked for anew
 * and kept for when there is no network.
 */

const CACHE = "vramcast";
const VERSIONED = /\/(pyodide|core)-[^/]+/;

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

/** Forgets other versions of a file of Python's. */
async function forget(cache, { url }) {
  const [version, kind] = VERSIONED.exec(url);
  for (const other of await cache.keys()) {
    const found = VERSIONED.exec(other.url);
    if (found && found[1] === kind && found[0] !== version) await cache.delete(other);
  }
}

async function once(request) {
  const cache = await caches.open(CACHE);
  const known = await cache.match(request);
  if (known) return known;
  const reply = await fetch(request);
  if (!reply.ok) return reply;
  await cache.put(request, reply.clone());
  await forget(cache, request);
  return reply;
}

async function anew(request) {
  const cache = await caches.open(CACHE);
  try {
    const reply = await fetch(request);
    if (reply.ok) await cache.put(request, reply.clone());
    return reply;
  } catch (error) {
    return (await cache.match(request)) ?? Promise.reject(error);
  }
}

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || new URL(request.url).origin !== self.location.origin) return;
  event.respondWith(VERSIONED.test(request.url) ? once(request) : anew(request));
});
