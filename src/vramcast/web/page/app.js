/** Starts the page: language, colours, navigation, and the page that the address names. */

import { LOCAL, askOnce, speakIn } from "./backend.js";
import { h, refill } from "./dom.js";
import { parsed, written } from "./hash.js";
import { PAGES } from "./pages.js";
import { pythonBar } from "./parts/python_bar.js";
import { dropAnywhere } from "./parts/drop_anywhere.js";
import { button } from "./parts/part.js";
import { reportWords } from "./report_words.js";
import { LANGUAGES, THEMES, language, remember, theme, wear } from "./settings.js";
import { speaker } from "./words.js";

const LANGUAGE_NAMES = { en: "English", zh: "中文" };
const at = (id) => document.getElementById(id);
const state = { language: language(), theme: theme(), page: null, shown: null, turn: 0 };

/** Says a sentence to a screen reader. */
function say(text) {
  at("said").textContent = text;
}

/** To another address; `replace`: without a step to go back to. */
function go(route, { replace = false } = {}) {
  const hash = written(route);
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else {
    history.pushState(null, "", hash);
    routed();
  }
}

function choice(label, key, values, names, chosen, act) {
  const options = values.map((value) => h("option", { value, selected: value === chosen }, names(value)));
  return h(
    "label",
    { class: "choice" },
    h("span", { class: "unseen" }, label),
    h("select", { "data-key": key, onchange: (event) => act(event.target.value) }, options),
  );
}

function speak(chosen) {
  state.language = chosen;
  remember("language", chosen);
  state.shown?.leave();
  Object.assign(state, { page: null, shown: null });
  frame();
  routed();
}

function colour(chosen) {
  state.theme = chosen;
  remember("theme", chosen);
  wear(chosen);
}

/** Everything around the page. */
function frame() {
  const t = speaker(state.language);
  speakIn(state.language);
  document.documentElement.lang = state.language === "zh" ? "zh-CN" : "en";
  at("skip").textContent = t("skip");
  refill(
    at("top"),
    h("a", { class: "brand", href: "#/start" }, h("b", {}, "vramcast"), h("span", {}, t("tagline"))),
    h(
      "nav",
      { "aria-label": t("pages") },
      PAGES.map(({ name }) => h("a", { href: `#/${name}`, "data-page": name }, t(`page.${name}`))),
    ),
    h(
      "div",
      { class: "choices" },
      choice(t("language"), "language", LANGUAGES, (name) => LANGUAGE_NAMES[name], state.language, speak),
      choice(t("theme"), "theme", THEMES, (name) => t(`theme.${name}`), state.theme, colour),
    ),
  );
  askOnce("/api/version").then(
    ({ version }) =>
      refill(
        at("bottom"),
        h("p", {}, t(LOCAL ? "where.browser" : "where.server", { version })),
        LOCAL ? null : h("p", {}, h("a", { href: "/api/openapi.json" }, t("api"))),
      ),
    () => {},
  );
}

/** Marks the page in the row of pages, which scrolls where a window is narrow. */
function marked(name) {
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page !== name) {
      link.removeAttribute("aria-current");
      continue;
    }
    link.setAttribute("aria-current", "page");
    const row = link.parentElement;
    row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
  }
}

async function opened(page, route) {
  state.turn += 1;
  const turn = state.turn;
  const t = speaker(state.language);
  const waiting = h("p", { class: "soft" }, t(LOCAL ? "starting" : "loading"));
  const root = h("div", { class: `page page-${page.name}` }, waiting);
  state.shown?.leave();
  Object.assign(state, { page: page.name, shown: null });
  refill(at("main"), root);
  document.title = `${t(`title.${page.name}`)} - vramcast`;
  try {
    const [module, named] = await Promise.all([page.load(), reportWords(state.language)]);
    if (turn !== state.turn) return;
    root.replaceChildren();
    state.shown = await module.show(root, { t, language: state.language, named, go, say }, route);
  } catch (error) {
    const again = button(t("try_again"), () => opened(page, route), { class: "apply" });
    refill(root, h("p", { class: "error", role: "alert" }, t("failed", { message: error.message })), again);
  }
}

/** Shows what the address says. */
function routed() {
  const route = parsed(location.hash);
  const page = PAGES.find(({ name }) => name === route.page) ?? PAGES[0];
  marked(page.name);
  if (state.page === page.name && state.shown) state.shown.update(route);
  else opened(page, { ...route, page: page.name });
}

wear(state.theme);
at("skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("main").focus();
});
dropAnywhere({ words: () => speaker(state.language), go, again: () => state.shown?.update(parsed(location.hash)) });
addEventListener("popstate", routed); // also when a link changes the hash
if (LOCAL) document.getElementById("top").after(pythonBar(() => speaker(state.language)));
frame();
routed();
