// Numbers as people read them.

const BITS = 1 / Math.LN2;

/** Nats of log-probability as bits of surprisal. */
export function bits(logProbability) {
  return -logProbability * BITS;
}

/** A probability as a percentage. */
export function percent(probability) {
  const value = 100 * probability;
  if (value >= 10) return `${value.toFixed(0)}%`;
  return value >= 0.1 ? `${value.toFixed(1)}%` : '< 0.1%';
}

/** The perplexity of log-probabilities; null where there are none. */
export function perplexity(logProbabilities) {
  if (!logProbabilities.length) return null;
  return Math.exp(-logProbabilities.reduce((sum, value) => sum + value, 0) / logProbabilities.length);
}

/** A perplexity in four digits or so. */
export function roundedPerplexity(value) {
  if (value === null) return '–';
  if (!(value < 1e6)) return value.toExponential(1);
  return value.toLocaleString('en', { maximumFractionDigits: value < 100 ? 1 : 0, minimumFractionDigits: value < 100 ? 1 : 0 });
}

/** 1st, 2nd, 3rd, 4th ... */
export function ordinal(number) {
  const ends = { one: 'st', two: 'nd', few: 'rd', other: 'th' };
  const rule = new Intl.PluralRules('en', { type: 'ordinal' }).select(number);
  return `${number.toLocaleString('en')}${ends[rule]}`;
}

/** Bytes in megabytes. */
export function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** The shade of a surprisal in bits, 0 (expected) to 8 (a complete surprise). */
export function shade(surprisal) {
  return Math.max(0, Math.min(8, Math.round(surprisal / 2)));
}
