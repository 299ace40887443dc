// The continuous cache (Grave et al., 2017), with the formula of torch_pru.lm.evaluation.cache:
//
//   p_cache(w)  ~  sum over cached i with w_i = w of exp(theta * h_t . h_i)
//   p(w)        =  (1 - lambda) * p_model(w)  +  lambda * p_cache(w)
//
// Position i holds the hidden state after token i, and the word that came after it, token i + 1.

/** The weights of the cached positions `[first, at)` for the prediction after position `at`; they add up to 1. */
export function attention(hidden, at, { theta, window }) {
  const first = Math.max(0, at - window);
  const weights = new Float64Array(at - first);
  let largest = -Infinity;
  for (let i = first; i < at; i++) {
    weights[i - first] = theta * dot(hidden[at], hidden[i]);
    largest = Math.max(largest, weights[i - first]);
  }
  let total = 0;
  for (let i = 0; i < weights.length; i++) total += weights[i] = Math.exp(weights[i] - largest);
  for (let i = 0; i < weights.length; i++) weights[i] /= total;
  return { first, weights };
}

/** The probability of each cached word after position `at`: a map from token to probability. */
export function cachedWords(hidden, tokens, at, settings) {
  const { first, weights } = attention(hidden, at, settings);
  const found = new Map();
  weights.forEach((weight, i) => {
    const word = tokens[first + i + 1];
    found.set(word, (found.get(word) ?? 0) + weight);
  });
  return found;
}

/** The log-probability of a word under model and cache; that of the model while the cache is empty. */
export function mixed(logProbability, cached, { mixture }) {
  if (cached === null || mixture === 0) return logProbability;
  return Math.log((1 - mixture) * Math.exp(logProbability) + mixture * cached);
}

/** Log-probabilities of all words under model and cache. */
export function mixedAll(logProbabilities, cached, settings) {
  if (cached === null || settings.mixture === 0) return logProbabilities;
  const found = logProbabilities.map((value) => value + Math.log1p(-settings.mixture));
  for (const [word, probability] of cached) {
    found[word] = mixed(logProbabilities[word], probability, settings);
  }
  return found;
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}
