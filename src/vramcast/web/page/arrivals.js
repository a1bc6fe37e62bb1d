/** What a dropped file is, and what it asks: told by its name and its first bytes. */

import { ask } from "./backend.js";
import { heldNow } from "./carried.js";
import { argument, isRecording } from "./uploads.js";

const HEADER = 48 * 2 ** 20; // bytes of a GGUF file that hold its header, vocabulary included
const LARGEST_CONFIG = 256 * 1024;
const LAUNCH = /\.(ya?ml|toml|sh|bash|py|ipynb|slurm|sbatch|service)$/i;
const PACKING = /[-._](I?Q\d\w*|BF16|F16|F32|MXFP4)(?=[-._]|$)/i;
const NETWORK = ["model_type", "architectures", "num_hidden_layers"];

async function objectOf(file) {
  try {
    return JSON.parse(await file.text());
  } catch {
    return null;
  }
}

/** The question that a file of a network asks: its model, on the cards of the visit. */
function asking({ model }, more = {}) {
  const { hardware } = heldNow();
  return { model, gpus: hardware ?? "h100-sxm-80gb", ...more };
}

const onCards = () => heldNow().hardware ?? "8xh100-sxm-80gb";

async function network(file, body, query = "") {
  try {
    return await ask(`/api/network${query}`, body);
  } catch (error) {
    return { refused: error.message, command: `vramcast train ./${argument(file.name)} --gpus ${onCards()}` };
  }
}

async function ofGguf(file) {
  const query = new URLSearchParams({ name: file.name.slice(0, 200), size: file.size });
  const found = await network(file, file.slice(0, HEADER), `?${query}`);
  const packing = PACKING.exec(file.name.replace(/\.gguf$/i, ""))?.[1].toLowerCase();
  const more = { engine: "llama.cpp", ...(packing && !packing.startsWith("f32") && { weights: packing }) };
  return found.model ? { page: "serve", found, question: asking(found, more) } : found;
}

/**
 * Where a file belongs.
 *
 * @param {File} file
 * @returns one of { page, file }: a page that reads it; { page, question, found }: a page that it asks;
 *   { command, refused? }: only the command line reads it
 */
export async function placeOf(file) {
  const head = new TextDecoder("latin1").decode(await file.slice(0, 4).arrayBuffer());
  if (head === "GGUF") return ofGguf(file);
  if (LAUNCH.test(file.name)) return { command: `vramcast train --from ${argument(file.name)} --gpus ${onCards()}` };
  const config = /\.json$/i.test(file.name) && file.size <= LARGEST_CONFIG ? await objectOf(file) : null;
  if (config && NETWORK.some((name) => name in config)) {
    const found = await network(file, config);
    return found.model ? { page: "train", found, question: asking(found) } : found;
  }
  if (config && !Array.isArray(config) && !("segments" in config) && !("traceEvents" in config))
    return { command: `vramcast train --from ${argument(file.name)} --gpus ${onCards()}` };
  return { page: (await isRecording(file)) ? "replay" : "oom", file };
}
