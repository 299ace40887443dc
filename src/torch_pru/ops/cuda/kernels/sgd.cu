// The update of all weights in two launches: `gradient_squares` sums the squares of all gradients, `sgd` makes the
// norm of that and clips, decays, steps and averages. The weights are listed in the kernels' own argument: nothing
// about them lies in device memory, so a captured graph keeps the list it was captured with. The work is cut into
// chunks of equal size that are dealt to the blocks in turn. What changes between steps is on the device.
#define PACKS 2                          // of four elements: what a thread takes of a chunk
#define CHUNK (4 * PACKS * THREADS)

struct Entry {
  float* weight;
  const float* gradient;   // (count / columns, columns), its rows `stride` apart
  float* average;          // or null
  i64 count, columns, stride;
  i64 first;               // the number of its first chunk
};

struct UpdateArgs {
  double* sums;            // of squares, one per block
  const float* rate;
  const float* share;      // of the new weights in the average
  const float* factor;     // of the loss and hence of all gradients, or null
  float* norm;             // of the gradients before clipping; this and the next three are null but in the first of several launches
  const float* loss;       // checked by `watch` as well, or null
  i64* steps;              // counted by `watch`
  i64* first_bad;          // the first step whose loss or norm was not finite, or -1
  double clip, decay;
  i64 blocks;              // how many sums there are
  i64 entries, chunks;
  Entry entry[ENTRIES];
};

DEVICE bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }          // false for NaN, too

// The sum over the block, which all of its threads get; always added in the same order.
DEVICE double block_sum(double x) {
  __shared__ double of_warp[THREADS / 32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.;
  for (int warp = 0; warp < THREADS / 32; warp++) sum += of_warp[warp];
  return sum;
}

// The entry of a chunk; `k` is that of a chunk nearby.
DEVICE int entry_of(const UpdateArgs& a, i64 chunk, int k) {
  while (a.entry[k].first > chunk) k--;
  while (k + 1 < a.entries && a.entry[k + 1].first <= chunk) k++;
  return k;
}

// Where element e of a weight is in its gradient.
DEVICE i64 place(const Entry& t, u32 e) {
  if (t.columns == t.count) return e;
  u32 columns = t.columns, row = e / columns;
  return row * t.stride + (e - row * columns);
}

// Whether four adjacent elements that begin at a multiple of four can be read and written at once.
DEVICE bool in_packs(const Entry& t) {
  bool even_rows = t.columns == t.count || (t.columns % 4 == 0 && t.stride % 4 == 0);
  return even_rows && (((u64)t.weight | (u64)t.gradient | (u64)t.average) & 15) == 0;
}

// Up to four elements from e on; those past the end are 0.
DEVICE float4 read_gradient(const Entry& t, u32 e, bool packed) {
  if (packed && e + 4 <= t.count) return *(const float4*)(t.gradient + place(t, e));
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
  if (e < t.count) v.x = t.gradient[place(t, e)];
  if (e + 1 < t.count) v.y = t.gradient[place(t, e + 1)];
  if (e + 2 < t.count) v.z = t.gradient[place(t, e + 2)];
  if (e + 3 < t.count) v.w = t.gradient[place(t, e + 3)];
  return v;
}

DEVICE float4 read(const float* from, u32 e, u32 count, bool packed) {
  if (packed && e + 4 <= count) return *(const float4*)(from + e);
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
  if (e < count) v.x = from[e];
  if (e + 1 < count) v.y = from[e + 1];
  if (e + 2 < count) v.z = from[e + 2];
  if (e + 3 < count) v.w = from[e + 3];
  return v;
}

DEVICE void write(float* to, u32 e, u32 count, bool packed, float4 v) {
  if (packed && e + 4 <= count) { *(float4*)(to + e) = v; return; }
  if (e < count) to[e] = v.x;
  if (e + 1 < count) to[e + 1] = v.y;
  if (e + 2 < count) to[e + 2] = v.z;
  if (e + 3 < count) to[e + 3] = v.w;
}

extern "C" __global__ void __launch_bounds__(THREADS, 8) gradient_squares(const __grid_constant__ UpdateArgs a) {
  double sum = 0.;
  int k = 0;
  for (i64 chunk = blockIdx.x; chunk < a.chunks; chunk += gridDim.x) {
    k = entry_of(a, chunk, k);
    const Entry& t = a.entry[k];
    bool packed = in_packs(t);
    u32 e = (chunk - t.first) * CHUNK + 4 * threadIdx.x;
    float4 g[PACKS];
    for (int i = 0; i < PACKS; i++) g[i] = read_gradient(t, e + 4 * THREADS * i, packed);
    for (int i = 0; i < PACKS; i++)            // four squares in float32, millions of such sums in float64
      sum += g[i].x * g[i].x + g[i].y * g[i].y + (g[i].z * g[i].z + g[i].w * g[i].w);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

struct Step { float scale, rate, decay, share; bool skipped; };

DEVICE float updated(float w, float g, const Step& s) {
  return w - s.rate * ((s.skipped ? 0.f : g * s.scale) + s.decay * w);
}
DEVICE float followed(float a, float w, const Step& s) { return a + (w - a) * s.share; }

DEVICE void update(const Entry& t, u32 e, const Step& s) {
  bool packed = in_packs(t);
  float4 w[PACKS], g[PACKS], a[PACKS];
  for (int i = 0; i < PACKS; i++) {            // all loads are under way before the first is waited for
    u32 at = e + 4 * THREADS * i;
    w[i] = read(t.weight, at, t.count, packed);
    g[i] = read_gradient(t, at, packed);
    if (t.average) a[i] = read(t.average, at, t.count, packed);
  }
  for (int i = 0; i < PACKS; i++) {
    u32 at = e + 4 * THREADS * i;
    w[i].x = updated(w[i].x, g[i].x, s); w[i].y = updated(w[i].y, g[i].y, s);
    w[i].z = updated(w[i].z, g[i].z, s); w[i].w = updated(w[i].w, g[i].w, s);
    write(t.weight, at, t.count, packed, w[i]);
    if (!t.average) continue;
    a[i].x = followed(a[i].x, w[i].x, s); a[i].y = followed(a[i].y, w[i].y, s);
    a[i].z = followed(a[i].z, w[i].z, s); a[i].w = followed(a[i].w, w[i].w, s);
    write(t.average, at, t.count, packed, a[i]);
  }
}

// A step whose scaled gradients overflow does not count as bad: it is taken with a gradient of zero.
DEVICE void watch(const UpdateArgs& a, float norm) {
  *a.norm = norm;
  if (!a.loss) return;
  i64 step = ++*a.steps;
  if (*a.first_bad < 0 && !(is_finite(*a.loss) && (a.factor || is_finite(norm)))) *a.first_bad = step;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) sgd(const __grid_constant__ UpdateArgs a) {
  double sum = 0.;
  for (i64 i = threadIdx.x; i < a.blocks; i += THREADS) sum += a.sums[i];
  float norm = sqrt(block_sum(sum)), factor = a.factor ? *a.factor : 1.f;
  bool skipped = a.factor && !is_finite(norm);
  float length = skipped ? 0.f : norm / factor;
  Step step = {fminf(1.f, (float)a.clip / (length + 1e-6f)) / factor, *a.rate, (float)a.decay, *a.share, skipped};
  if (blockIdx.x == 0 && threadIdx.x == 0 && a.norm) watch(a, norm);
  int k = a.entries - 1;
  // From the last chunk to the first: the gradients that were squared last are still in the cache.
  for (i64 chunk = a.chunks - 1 - blockIdx.x; chunk >= 0; chunk -= gridDim.x) {
    k = entry_of(a, chunk, k);
    update(a.entry[k], (chunk - a.entry[k].first) * CHUNK + 4 * threadIdx.x, step);
  }
}
