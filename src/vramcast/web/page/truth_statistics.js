/** Figures of measured cases, as `python -m truth.score` counts them. Nothing here touches the document. */

const CLOSE = 0.05;
const SINGLE = "/"; // kernels are groups of their own: operator/implementation

/** What stands for all kernels together. */
export const OPERATORS = "single operators";

/** The value below which a share of values lies; linear between the closest ranks. */
export function percentile(values, share) {
  const ordered = [...values].sort((one, other) => one - other);
  const position = share * (ordered.length - 1);
  const low = Math.floor(position);
  const high = Math.min(low + 1, ordered.length - 1);
  return ordered[low] + (ordered[high] - ordered[low]) * (position - low);
}

/** Counts and errors of cases; errors are absent where none is predicted. */
export function statistics(cases) {
  const errors = cases.map(({ error }) => error).filter((error) => error !== undefined);
  const known = { cases: cases.length, predicted: errors.length };
  if (!errors.length) return known;
  const sizes = errors.map(Math.abs);
  return {
    ...known,
    median: percentile(sizes, 0.5),
    p95: percentile(sizes, 0.95),
    worst: errors.reduce((one, other) => (Math.abs(other) > Math.abs(one) ? other : one)),
    under: errors.filter((error) => error < -CLOSE).length / errors.length,
  };
}

/** The group that a case is shown in. */
export function groupOf({ group }) {
  return group.includes(SINGLE) ? OPERATORS : group;
}

/** The groups as the README lists them: kernels together, all others as the service counted them. */
export function grouped({ groups, cases }) {
  const single = new Map();
  for (const one of cases.filter(({ group, mark }) => group.includes(SINGLE) && !mark))
    single.set(one.level, [...(single.get(one.level) ?? []), one]);
  const merged = [...single].map(([level, members]) => ({ group: OPERATORS, level, ...statistics(members) }));
  return [...groups.filter(({ group }) => !group.includes(SINGLE)), ...merged];
}

/** Powers of bytes that units begin with. */
const SIZES = { bytes: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, KB: 1e3, MB: 1e6, GB: 1e9, G: 2 ** 30 };

/** What a unit measures, so that cases of several units stand on one axis: { kind, factor }. */
export function measure(unit = "") {
  const first = unit.split(/[ (]/)[0];
  const binary = first === "GB" && /GiB|1024/.test(unit);
  if (first in SIZES) return { kind: "memory", factor: binary ? SIZES.GiB : SIZES[first] };
  return unit === "s" ? { kind: "time", factor: 1 } : { kind: "number", factor: 1 };
}
