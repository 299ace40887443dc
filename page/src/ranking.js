// Choosing words by their probabilities.

/** The `count` likeliest ids for which `allowed(id)` holds, likeliest first; of equals, the lower id. */
export function likeliest(logProbabilities, count, allowed = () => true) {
  const best = [];
  for (let id = 0; id < logProbabilities.length; id++) {
    const value = logProbabilities[id];
    if (best.length === count && value <= logProbabilities[best.at(-1)]) continue;
    if (!allowed(id)) continue;
    let at = best.length;
    while (at > 0 && logProbabilities[best[at - 1]] < value) at--;
    best.splice(at, 0, id);
    if (best.length > count) best.pop();
  }
  return best;
}

/** The place of an id among all, from 1. */
export function rank(logProbabilities, id) {
  let before = 0;
  for (let other = 0; other < logProbabilities.length; other++) {
    if (logProbabilities[other] > logProbabilities[id]) before++;
  }
  return before + 1;
}

/** An id drawn at random; at temperature 0 the likeliest. `barred` is never drawn. */
export function draw(logProbabilities, temperature, barred = null, random = Math.random) {
  const [top] = likeliest(logProbabilities, 1, (id) => id !== barred);
  if (temperature === 0) return top;
  const weights = Float64Array.from(logProbabilities, (value, id) =>
    id === barred ? 0 : Math.exp((value - logProbabilities[top]) / temperature),
  );
  let left = random() * weights.reduce((sum, weight) => sum + weight, 0);
  for (let id = 0; id < weights.length; id++) {
    left -= weights[id];
    if (left < 0 && weights[id] > 0) return id;
  }
  return top;
}
