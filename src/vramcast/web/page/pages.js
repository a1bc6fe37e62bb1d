/**
 * Every page: its name in the address, and the module that shows it.
 *
 * A module exports `show(root, app, route)`: it fills `root` and returns { update(route), leave() }. `update` is called
 * when the address changes within the page, `leave` before another page or language takes its place. `app` is
 * { t, language, named, go, say }: the page's words, the words of reports, to another address, to a screen reader.
 * Its heading is `title.NAME` of the words, its name in the navigation `page.NAME`.
 */
export const PAGES = [
  { name: "start", load: () => import("./pages/start.js") },
  { name: "train", load: () => import("./pages/train.js") },
  { name: "serve", load: () => import("./pages/serve.js") },
  { name: "plan", load: () => import("./pages/plan.js") },
  { name: "oom", load: () => import("./pages/oom.js") },
  { name: "replay", load: () => import("./pages/replay.js") },
  { name: "gpus", load: () => import("./pages/gpus.js") },
  { name: "instances", load: () => import("./pages/instances.js") },
  { name: "accuracy", load: () => import("./pages/accuracy.js") },
];
