// The decoder for one token: every word's score, and the best of them. A warp takes WORDS rows at once.
#define ROW_PACKS ((N + 7) / 8)
#define THREADS (WARPS * LANES)

struct TokenScoresArgs {
  const uint4* weight;     // (words, ROW_PACKS), padded with zeros
  const float* offset;     // (words)
  const u16* h;            // (N)
  float* scores;           // (words)
  u64* key;                // zero beforehand: key_of the best word and its score
  i64 words;
};

extern "C" __global__ void __launch_bounds__(THREADS) token_scores(const __grid_constant__ TokenScoresArgs args) {
  __shared__ uint4 vector[ROW_PACKS];
  __shared__ u64 best_of[WARPS];
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  const int first = (blockIdx.x * WARPS + warp) * WORDS;
  Row<ROW_PACKS> rows[WORDS];
  float offsets[WORDS];
#pragma unroll
  for (int w = 0; w < WORDS; w++) {                    // past the end the last word once more, which is not used
    const i64 word = first + w < args.words ? first + w : args.words - 1;
    rows[w].ask(args.weight + word * ROW_PACKS, lane);
    offsets[w] = args.offset[word];
  }
  Staged<N, THREADS> hidden;
  hidden.ask(args.h);
  hidden.put(vector);
  __syncthreads();

  u64 best = 0;                                        // below every key
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const float sum = sum_lanes(rows[w].product(vector, lane));
    if (first + w >= args.words) continue;             // the whole warp
    const float score = sum + offsets[w];
    if (lane == 0) args.scores[first + w] = score;
    const u64 key = key_of(score, first + w);
    best = key > best ? key : best;
  }
  if (lane == 0) best_of[warp] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int other = 0; other < WARPS; other++) best = best_of[other] > best ? best_of[other] : best;
  atomicMax(args.key, best);                           // whole numbers: the order of arrival changes nothing
}
