/** The whole window takes a file and leads it to the page that it belongs to. */

import { placeOf } from "../arrivals.js";
import { h, refill } from "../dom.js";
import { hand } from "../handed.js";
import { questionText } from "../hash.js";
import { button } from "./part.js";

const holdsFiles = ({ dataTransfer }) => [...(dataTransfer?.types ?? [])].includes("Files");

/**
 * Listens for good.
 *
 * @param {{words: () => Function, go: (route) => void, again: () => void}} app  `again`: shows the page that is open
 *   once more, now that a file waits for it
 */
export function dropAnywhere({ words, go, again }) {
  const shade = h("div", { class: "drop-shade", hidden: true, "aria-hidden": "true" });
  const told = h("div", { class: "drop-told", role: "status" });
  let depth = 0;
  document.body.append(shade, told);
  const over = (by) => {
    depth = by ? Math.max(0, depth + by) : 0;
    shade.hidden = !depth;
    if (depth === 1) refill(shade, h("b", {}, words()("drop.here")), h("span", {}, words()("drop.kinds")));
  };
  const close = () => refill(told);
  const say = (...children) => refill(told, h("div", { class: "told-box" }, children,
    button(words()("close"), close, { class: "link" })));

  async function take(file) {
    const t = words();
    say(h("p", {}, t("drop.reading", { name: file.name })));
    const { page, question, found, command, refused, ...rest } = await placeOf(file);
    if (command) {
      say(refused ? h("p", { class: "error" }, refused) : null, h("p", {}, t("drop.command", { name: file.name })),
        h("pre", { tabindex: "0" }, command));
      return;
    }
    close();
    if (question) {
      say(h("p", {}, t(found.exact ? "drop.is" : "drop.like", { name: file.name, model: found.model })));
      go({ page, queries: [questionText(question)] });
    } else {
      hand(page, rest.file);
      go({ page });
      again(page);
    }
  }

  addEventListener("dragenter", (event) => holdsFiles(event) && over(1));
  addEventListener("dragleave", (event) => holdsFiles(event) && over(-1));
  addEventListener("dragover", (event) => holdsFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    over(0);
    const [file] = event.dataTransfer?.files ?? [];
    if (!file || event.defaultPrevented) return; // a place of a page took it
    event.preventDefault();
    take(file).catch((error) => say(h("p", { class: "error" }, error.message)));
  });
}
