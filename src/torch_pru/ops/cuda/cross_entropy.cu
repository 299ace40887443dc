// Softmax and cross-entropy of rows of 16-bit logits: the losses, and in the logits' own place their gradient.
// One block takes a row at a time. Sums are float32; no float32 logits ever reach memory. Where a row fits, shared
// memory keeps it between the sum and the gradient (KEPT), so that it is read once.
struct CrossEntropyArgs {
  u16* logits;            // (rows, padded): in: logits; out, where GRADIENT: softmax minus one-hot
  const i64* targets;     // (rows)
  float* losses;          // (rows): -log p(target)
  i64 rows, padded;       // padded is a multiple of 8; places past the vocabulary hold -infinity
};

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define NEGATIVE_INFINITY __int_as_float(0xff800000)
DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_fast(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

struct Partial { float largest, sum; };                // sum of 2^(x - largest), x in units of log 2

DEVICE Partial merge(Partial a, Partial b) {
  float largest = fmaxf(a.largest, b.largest);
  if (largest == NEGATIVE_INFINITY) return {largest, 0.f};     // nothing seen yet: the difference would be NaN
  return {largest, a.sum * exp2_fast(a.largest - largest) + b.sum * exp2_fast(b.largest - largest)};
}

DEVICE Partial merge_lanes(Partial p) {
  for (int step = 16; step > 0; step /= 2)
    p = merge(p, {__shfl_xor_sync(~0u, p.largest, step), __shfl_xor_sync(~0u, p.sum, step)});
  return p;
}

DEVICE void widen8(uint4 v, float (&x)[8]) {
  u32 words[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; i++) { x[2 * i] = widen(words[i]); x[2 * i + 1] = widen(words[i] >> 16); }
}

#if KEPT
extern __shared__ uint4 kept[];                        // each thread reads what it wrote itself: no barrier
#define KEEP(p, pack) kept[p] = pack
#define AGAIN(row, p) kept[p]
#else
#define KEEP(p, pack)
#define AGAIN(row, p) row[p]
#endif

// log2 of the sum of exponentials of a row, known to every thread of the block.
DEVICE float row_log_sum(const uint4* row, int packs) {
  __shared__ Partial of_warp[THREADS / 32];
  Partial mine = {NEGATIVE_INFINITY, 0.f};
  for (int p = threadIdx.x; p < packs; p += THREADS) {
    uint4 pack = row[p];
    KEEP(p, pack);
    float x[8];
    widen8(pack, x);
    float largest = NEGATIVE_INFINITY, sum = 0.f;
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, x[i] * LOG2E);
    if (largest > NEGATIVE_INFINITY) for (int i = 0; i < 8; i++) sum += exp2_fast(x[i] * LOG2E - largest);
    mine = merge(mine, {largest, sum});
  }
  mine = merge_lanes(mine);
  __syncthreads();                                     // the row before has been read by all
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  int lane = threadIdx.x % 32;
  mine = merge_lanes(lane < THREADS / 32 ? of_warp[lane] : Partial{NEGATIVE_INFINITY, 0.f});
  return mine.largest + log2_fast(mine.sum);
}

DEVICE void write_gradient(uint4* row, int packs, float log_sum, int target) {
  for (int p = threadIdx.x; p < packs; p += THREADS) {
    float x[8];
    widen8(AGAIN(row, p), x);
    for (int i = 0; i < 8; i++) x[i] = exp2_fast(x[i] * LOG2E - log_sum) - (8 * p + i == target ? 1.f : 0.f);
    row[p] = make_uint4(narrow2(x[0], x[1]), narrow2(x[2], x[3]), narrow2(x[4], x[5]), narrow2(x[6], x[7]));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy(CrossEntropyArgs a) {
  int packs = a.padded / 8;
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    u16* row = a.logits + r * a.padded;
    int target = a.targets[r];
    float at_target = widen(row[target]);
    float log_sum = row_log_sum((const uint4*)row, packs);
    if (threadIdx.x == 0) a.losses[r] = log_sum * LN2 - at_target;
#if GRADIENT
    __syncthreads();                                   // every thread has read the target's logit
    write_gradient((uint4*)row, packs, log_sum, target);
#endif
  }
}
