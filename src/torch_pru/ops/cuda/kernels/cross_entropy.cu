// Softmax and cross-entropy of rows of 16-bit logits: writes the losses, and the gradient in place of the logits.
// One block takes a row at a time. Sums are float32; float32 logits are never stored. A row that fits into shared
// memory is kept there (KEPT): it is loaded as a whole, and read from global memory once.
struct CrossEntropyArgs {
  u16* logits;            // (rows, padded): in: logits; out, where GRADIENT: softmax minus one-hot
  const i64* targets;     // (rows)
  float* losses;          // (rows): -log p(target)
  i64 rows, padded;       // padded is a multiple of 8; places past the vocabulary hold -infinity
};

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

struct Partial { float largest, sum; };                // sum of 2^(x - largest), x in units of log 2

// The same over all lanes of a warp; every lane gets the result.
DEVICE Partial of_lanes(Partial p) {
  float largest = p.largest;
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  float sum = largest == NEGATIVE_INFINITY ? 0.f : p.sum * exp2_fast(p.largest - largest);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return {largest, sum};
}

DEVICE void widen8(uint4 v, float (&x)[8]) {
  u32 words[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; i++) { x[2 * i] = widen(words[i]); x[2 * i + 1] = widen(words[i] >> 16); }
}

#if KEPT
extern __shared__ uint4 kept[];                        // each thread reads what it copied itself: no barrier
#define PACK(row, p) kept[p]
DEVICE void fetch(const uint4* row, int packs) {
  for (int p = threadIdx.x; p < packs; p += THREADS) copy16(smem_address(kept + p), row + p);
  copies_wait();
}
#else
#define PACK(row, p) row[p]
DEVICE void fetch(const uint4* row, int packs) {}
#endif

// A thread's share of a row: first the largest logit, then the sum.
DEVICE Partial share_of_row(const uint4* row, int packs) {
  float largest = NEGATIVE_INFINITY, sum = 0.f, x[8];
  for (int p = threadIdx.x; p < packs; p += THREADS) {
    widen8(PACK(row, p), x);
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, x[i]);
  }
  largest *= LOG2E;
  float base = largest == NEGATIVE_INFINITY ? 0.f : largest;   // no values yet: the difference would be NaN
  for (int p = threadIdx.x; p < packs; p += THREADS) {
    widen8(PACK(row, p), x);
    for (int i = 0; i < 8; i++) sum += exp2_fast(x[i] * LOG2E - base);
  }
  return {largest, sum};
}

// log2 of the sum of exponentials of a row, known to every thread of the block.
DEVICE float row_log_sum(const uint4* row, int packs) {
  __shared__ Partial of_warp[THREADS / 32];
  Partial mine = of_lanes(share_of_row(row, packs));
  __syncthreads();                                     // all threads have read the previous row
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  int lane = threadIdx.x % 32;
  mine = of_lanes(lane < THREADS / 32 ? of_warp[lane] : Partial{NEGATIVE_INFINITY, 0.f});
  return mine.largest + log2_fast(mine.sum);
}

DEVICE void write_gradient(uint4* row, int packs, float log_sum, int target) {
  for (int p = threadIdx.x; p < packs; p += THREADS) {
    float x[8];
    widen8(PACK(row, p), x);
    for (int i = 0; i < 8; i++) x[i] = exp2_fast(x[i] * LOG2E - log_sum);
    if (p == target / 8) for (int i = 0; i < 8; i++) x[i] -= i == target % 8 ? 1.f : 0.f;
    row[p] = make_uint4(narrow2(x[0], x[1]), narrow2(x[2], x[3]), narrow2(x[4], x[5]), narrow2(x[6], x[7]));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) cross_entropy(CrossEntropyArgs a) {
  int packs = a.padded / 8;
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    u16* row = a.logits + r * a.padded;
    fetch((const uint4*)row, packs);
    int target = a.targets[r];
    float at_target = widen(row[target]);              // before the barriers, and hence before anyone writes
    float log_sum = row_log_sum((const uint4*)row, packs);
    if (threadIdx.x == 0) a.losses[r] = log_sum * LN2 - at_target;
#if GRADIENT
    write_gradient((uint4*)row, packs, log_sum, target);
#endif
  }
}
