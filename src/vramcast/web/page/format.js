/** Figures as people read them. Bytes are integers everywhere else. */

const UNITS = [
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** A size in decimals. Many lie in the middle of two (2.125 MiB): then the even one, as the command line prints it. */
function decimals(value, digits) {
  const scaled = value * 10 ** digits;
  const isExact = Number.isInteger(value * 2 ** (digits + 1)); // other middles are none in binary
  if (!isExact || Math.abs(scaled % 1) !== 0.5) return value.toFixed(digits);
  return ((2 * Math.round(scaled / 2)) / 10 ** digits).toFixed(digits);
}

/** 35.4 GiB; `digits` behind the point. */
export function bytes(value, digits = 1) {
  for (const [unit, factor] of UNITS)
    if (Math.abs(value) >= factor) return `${decimals(value / factor, digits)} ${unit}`;
  return `${value} B`;
}

/** How sizes that stand together are written: in one unit, the largest one's; what is less than its decimals < 0.1. */
export function sizes(values) {
  const largest = Math.max(0, ...values.map(Math.abs));
  const [unit, factor] = UNITS.find(([, one]) => largest >= one) ?? ["B", 1];
  return (value) => {
    const written = factor === 1 ? `${value}` : decimals(value / factor, 1);
    return `${value && Number(written) === 0 ? `${value < 0 ? "> -" : "< "}0.1` : written} ${unit}`;
  };
}

/** 8,030,261,248 */
export function count(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

/** A rate or a number of sequences: whole where it is large. */
export function rounded(value) {
  return value >= 100 ? count(Math.round(value)) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** 8.03B, 494M */
export function parameters(value) {
  for (const [unit, factor] of [
    ["T", 1e12],
    ["B", 1e9],
    ["M", 1e6],
  ])
    if (value >= factor) return `${Number((value / factor).toPrecision(3))}${unit}`;
  return count(value);
}

/** Three digits, as of a measurement: 44.0, 366, 1042. */
function threeDigits(value) {
  return value < 999.5 ? value.toPrecision(3) : value.toFixed(0);
}

/** 552 ms, 8.09 s, 3.1 h, 940 d */
export function seconds(value) {
  if (value < 0.9995) return `${threeDigits(1000 * value)} ms`;
  if (value < 600) return `${threeDigits(value)} s`;
  if (value < 2 * 3600) return `${(value / 60).toFixed(0)} min`;
  return value < 3 * 86400 ? `${(value / 3600).toFixed(1)} h` : `${count(Math.round(value / 86400))} d`;
}

/** 19 % */
export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

/** A chance; no number of measured runs makes one certain. */
export function likely(chance) {
  return chance > 0.99 ? "> 99 %" : chance < 0.01 ? "< 1 %" : percent(chance);
}

/** A part of a whole: 66.3 %, < 0.1 %. */
export function partOf(share) {
  return share > 0 && share < 0.001 ? "< 0.1 %" : percent(share, 1);
}

/** 55.04 USD, 1,241,225 USD */
export function money(value, currency) {
  const digits = value >= 1000 ? 0 : 2;
  const places = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return `${value.toLocaleString("en-US", places)} ${currency}`;
}
