/** Files that visitors choose: what they are, and whether they are small enough, before any of them is read whole. */

const MIB = 2 ** 20;

/** The largest recording that the service reads [bytes]; limits.py says the same. */
export const LARGEST_RECORDING = 128 * MIB;

/** The largest text that the service reads [characters]; limits.py says the same. */
export const LARGEST_TEXT = 8 * MIB;

/** The longest text that a box is filled with [characters]; a browser takes seconds to lay out more. */
export const LONGEST_SHOWN = 256 * 1024;

const HEAD = 16; // bytes that tell what a file is
const HALF = LARGEST_TEXT / 2 - 1024;
const PACKED = [[0x1f, 0x8b], [0x50, 0x4b], [0x28, 0xb5, 0x2f, 0xfd]]; // gzip, zip, zstd
const PICKLES = [[0x80], [0x7d], [0x5d]]; // the formats that pickles begin with; "}" and "]" are the oldest
const JSON_NAME = /\.json(\.gz)?$/i;
const PICKLE_NAME = /\.(pickle|pkl|bin)$/i;

const begins = (head, start) => start.every((byte, index) => head[index] === byte);

/** Whether a file is a recording of memory, as far as its first bytes and its name tell; other files are texts. */
export async function isRecording(file) {
  const head = new Uint8Array(await file.slice(0, HEAD).arrayBuffer());
  if (JSON_NAME.test(file.name) || PACKED.some((start) => begins(head, start))) return true;
  return PICKLES.some((start) => begins(head, start)) && (head[0] === PICKLES[0][0] || PICKLE_NAME.test(file.name));
}

/** The text of a log; of a long one its beginning, of `counted` lines, and its end. */
export async function textOf(file) {
  if (file.size <= LARGEST_TEXT) return { text: await file.text() };
  const [first, last] = await Promise.all([file.slice(0, HALF).text(), file.slice(-HALF).text()]);
  return { text: `${first}\n${last}`, counted: first.split("\n").length };
}

/** A name as an argument of a shell command. */
export function argument(name) {
  return /^[\w@%+=:,./-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
}
