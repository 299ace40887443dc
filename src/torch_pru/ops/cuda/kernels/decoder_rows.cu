// What the decoder's backward does with the gradient s of each row's loss, in one pass: it multiplies the gradient of
// the hidden values by s in place, and writes the features s·h, followed by s eight times, for the weight's gradient.
struct DecoderRowsArgs {
  const u16* hidden;       // (rows, width)
  const float* scale;      // (rows): s
  u16* gradient;           // (rows, width)
  uint4* features;         // (rows, packs) of 8 values each; those between width and the last pack are 0
  i64 rows, width, packs;
};

// Eight values; the last ones may be missing and count as 0.
DEVICE uint4 read8(const u16* from, int left, bool packed) {
  if (packed) return *(const uint4*)from;
  u32 y[4];
  for (int i = 0; i < 4; i++)
    y[i] = (2 * i < left ? from[2 * i] : 0u) | (2 * i + 1 < left ? (u32)from[2 * i + 1] << 16 : 0u);
  return make_uint4(y[0], y[1], y[2], y[3]);
}

DEVICE void write8(u16* to, int left, bool packed, uint4 v) {
  if (packed) { *(uint4*)to = v; return; }
  u32 y[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 8; i++) if (i < left) to[i] = y[i / 2] >> 16 * (i % 2);
}

DEVICE u32 scaled2(u32 two, float s) { return narrow2(s * widen(two), s * widen(two >> 16)); }
DEVICE uint4 scaled8(uint4 v, float s) {
  return make_uint4(scaled2(v.x, s), scaled2(v.y, s), scaled2(v.z, s), scaled2(v.w, s));
}

extern "C" __global__ void __launch_bounds__(THREADS) decoder_rows(DecoderRowsArgs a) {
  u32 packs = a.packs, all = a.rows * packs;
  bool packed = a.width % 8 == 0 && (((u64)a.hidden | (u64)a.gradient) & 15) == 0;
  for (u32 p = blockIdx.x * THREADS + threadIdx.x; p < all; p += gridDim.x * THREADS) {
    u32 row = p / packs, column = 8 * (p - row * packs);
    float s = a.scale[row];
    if (column == 8 * packs - 8) {
      u32 twice = narrow2(s, s);
      a.features[p] = make_uint4(twice, twice, twice, twice);
      continue;
    }
    i64 at = row * a.width + column;
    int left = a.width - column;
    uint4 h = read8(a.hidden + at, left, packed), d = read8(a.gradient + at, left, packed);
    a.features[p] = scaled8(h, s);
    write8(a.gradient + at, left, packed, scaled8(d, s));
  }
}
