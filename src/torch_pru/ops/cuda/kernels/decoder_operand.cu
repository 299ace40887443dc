// The decoder's weight and bias in 16 bits, with as many more words as make their number a multiple of 8: rows of
// logits then start at 16 bytes. Such a word has the weight 0 and the bias -infinity.
struct DecoderOperandArgs {
  const float* weight;     // (words, width)
  const float* bias;       // (words)
  u16* operand;            // (padded, width)
  u16* shift;              // (padded)
  i64 words, padded, width;
};

DEVICE u32 narrowed(const float* from, i64 at, i64 count, float filler) {
  return narrow2(at < count ? from[at] : filler, at + 1 < count ? from[at + 1] : filler);
}

// Elements 8p to 8p + 7.
DEVICE uint4 narrowed8(const float* from, i64 p, i64 count, float filler) {
  if (((u64)from & 15) == 0 && 8 * p + 8 <= count) {
    float4 a = ((const float4*)from)[2 * p], b = ((const float4*)from)[2 * p + 1];
    return make_uint4(narrow2(a.x, a.y), narrow2(a.z, a.w), narrow2(b.x, b.y), narrow2(b.z, b.w));
  }
  i64 at = 8 * p;
  return make_uint4(narrowed(from, at, count, filler), narrowed(from, at + 2, count, filler),
                    narrowed(from, at + 4, count, filler), narrowed(from, at + 6, count, filler));
}

extern "C" __global__ void __launch_bounds__(THREADS) decoder_operand(DecoderOperandArgs a) {
  i64 of_weight = a.padded / 8 * a.width, of_both = of_weight + a.padded / 8, stride = (i64)gridDim.x * THREADS;
  float least = __int_as_float(0xff800000);
  for (i64 p = (i64)blockIdx.x * THREADS + threadIdx.x; p < of_both; p += stride) {
    if (p < of_weight) ((uint4*)a.operand)[p] = narrowed8(a.weight, p, a.words * a.width, 0.f);
    else ((uint4*)a.shift)[p - of_weight] = narrowed8(a.bias, p - of_weight, a.words, least);
  }
}
