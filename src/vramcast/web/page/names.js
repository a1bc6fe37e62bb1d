/** Cards and machines as people write them: "8 × H100 SXM5 80 GB" for 8xh100-sxm-80gb. */

import { askOnce } from "./backend.js";
import { gpusOf } from "./parts/gpus_field.js";

const LINES = /^(?:GeForce|Tesla|Instinct|NVIDIA|AMD|Radeon(?= Instinct)) /; // of products, which nobody says

let products = new Map();
let machines = new Map();

/** A product's name without its line, its memory written apart. */
export function productText(product) {
  return product.replace(LINES, "").replace(/(\d)GB\b/g, "$1 GB");
}

/** Learns the names of the catalogue; until then they stand as they are asked for. */
export async function learnNames() {
  const [{ gpus }, { instances }] = await Promise.all([askOnce("/api/gpus"), askOnce("/api/instances")]);
  products = new Map(gpus.map(({ name, product }) => [name, productText(product || name)]));
  machines = new Map(instances.map(({ name, gpu, gpus: number }) => [name, { gpu, number }]));
}

/** A card's name. */
export function cardText(name) {
  return products.get(name) ?? name;
}

/** What --gpus takes, in words. */
export function gpusText(text) {
  const { machines: several, each, card } = gpusOf(text);
  const rented = machines.get(card);
  const times = (number, what) => (number && number !== "1" ? `${number} × ${what}` : what);
  if (rented) {
    const [provider, ...name] = card.split(":");
    return `${times(several, name.join(":"))} (${provider}, ${times(String(rented.number), cardText(rented.gpu))})`;
  }
  return times(several, times(each, cardText(card)));
}
