/** Share and take away: the link, the command, the document, configuration files and reports. */

import { ask, inEnglish } from "../backend.js";
import { h, refill } from "../dom.js";
import { button, texts } from "./part.js";

const TEXT = "text/plain;charset=utf-8";
const KEPT_MS = 10_000; // until a browser has read what it saves

/** Hands a file to the browser to save. */
export function saved(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}

/** Saves an answer as the document that --json prints, which has no columns of blocks for a picture. */
export async function savedJson(command, answer) {
  const text = JSON.stringify(await inEnglish(answer), (_, value) => (value?.starts ? undefined : value), 1) + "\n";
  saved(`vramcast-${command}.json`, new Blob([text], { type: "application/json" }));
}

/** One argument of a shell command. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * The same question for the command line. A link may hold anything, and somebody pastes this into a shell: only what
 * the form knows is written, so that no name of an option is a command, and no option that writes a file gets in.
 */
export function commandOf(command, question, kinds) {
  const known = Object.fromEntries(Object.entries(question).filter(([name]) => Object.hasOwn(kinds, name)));
  const { model: named, ...rest } = known;
  const model = named?.startsWith("-") ? "" : named;
  const flag = (name, value) => `--${value === "false" ? "no-" : ""}${name}`;
  const options = Object.entries(rest).map(([name, value]) =>
    (kinds[name] === "flag" ? flag(name, value) : `--${name} ${quoted(value)}`));
  return ["vramcast", command, ...(model ? [quoted(model)] : []), ...options].join(" ");
}

function fileRow({ name, text }, t) {
  const save = () => saved(name.split("/").at(-1), new Blob([text], { type: TEXT }));
  return h("li", {},
    h("details", {}, h("summary", {}, h("code", {}, name)), h("pre", { tabindex: "0" }, text)),
    button(t("download"), save, { "aria-label": `${t("download")} ${name}` }));
}

function filesShown({ files, notes }, t, close) {
  return h("div", { class: "files", role: "region", "aria-label": t("files") },
    h("p", { class: "spread" }, h("b", {}, t("files")), h("span", { class: "soft" }, t("files.hint")),
      button(t("close"), close, { class: "link" })),
    h("ul", {}, files.map((file) => fileRow(file, t))),
    texts(notes));
}

/**
 * The row of buttons. It stays while answers change, so that it keeps the focus.
 *
 * @param {{command: string, current: () => {question, body, answer, kinds}}} about  `body`: the question as it is sent
 * @returns {{node, clear: () => void}}  `clear`: what is shown belongs to a question that is no longer there
 */
export function takePart({ command, current }, { t, language, say }) {
  const below = h("div", { class: "below" });
  const shown = (...children) => refill(below, ...children);
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      say(t("copied"));
      shown(h("p", { class: "soft" }, t("copied")));
    } catch {
      shown(h("p", { class: "soft" }, t("copy.failed")), h("pre", { tabindex: "0" }, text));
    }
  };
  const tried = (act) => () => act().catch((error) => shown(h("p", { class: "error", role: "alert" }, error.message)));
  const report = (format) => tried(async () => {
    const asked = { command, question: current().body, format, lang: language };
    saved(`vramcast-${command}.${format}`, await ask("/api/report", asked, { as: "blob" }));
  });
  const files = tried(async () => {
    const { question, body } = current();
    const reply = await ask("/api/files", { command, question: body });
    if (current().question === question) shown(filesShown(reply, t, () => shown()));
  });
  const json = tried(async () => {
    shown(h("p", { class: "soft" }, t("loading"))); // a search in another language is searched again
    await savedJson(command, current().answer);
    shown();
  });
  const acts = {
    "copy.link": () => copied(location.href),
    "copy.command": () => copied(commandOf(command, current().question, current().kinds)),
    "files": files, "download.json": json, "download.html": report("html"), "download.md": report("md"),
  };
  const buttons = Object.entries(acts).map(([key, act]) => button(t(key), act));
  const node = h("section", { class: "take", "aria-label": t("take") }, h("div", { class: "buttons" }, buttons), below);
  return { node, clear: () => shown() };
}
