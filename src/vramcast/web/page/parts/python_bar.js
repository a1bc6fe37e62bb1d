/** Of the static site: how far Python is, while a visitor reads already; and the service worker that keeps its files. */

import { h } from "../dom.js";
import { sizes } from "../format.js";

/** A bar that goes when Python is there; `words()`: the page's words now. */
export function pythonBar(words) {
  const bar = h("progress", {});
  const said = h("span", {});
  const node = h("div", { class: "python", role: "status" }, bar, said);
  addEventListener("vramcast-python", ({ detail: { fetched, whole, ready, failed } }) => {
    const t = words();
    node.hidden = Boolean(ready);
    const size = sizes([whole]);
    if (failed) said.textContent = t("python.failed", { message: failed });
    else if (fetched >= whole) {
      bar.removeAttribute("value");
      said.textContent = t("python.starts");
    } else if (fetched !== undefined) {
      Object.assign(bar, { max: whole, value: fetched });
      said.textContent = t("python.arrives", { fetched: size(fetched), whole: size(whole) });
    }
  });
  navigator.serviceWorker?.register("service_worker.js").catch(() => {}); // refused in private windows
  if (!navigator.connection?.saveData) import("../pyodide.js").then(({ start }) => start());
  return node;
}
