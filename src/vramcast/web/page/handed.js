/** A file that was dropped on one page and belongs to another: it waits here until that one is shown. */

let waiting = null;

/** Leaves a file for a page. */
export function hand(page, file) {
  waiting = { page, file };
}

/** The file that waits for a page, once; null where there is none. */
export function handed(page) {
  if (waiting?.page !== page) return null;
  const { file } = waiting;
  waiting = null;
  return file;
}
