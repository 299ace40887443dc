// The passes for one instruction set: compiled once for each, with its flags and a name for its namespace.
#include "backward.h"
#include "forward.h"

#define JOIN(a, b) a##b
#define NAME(prefix, isa) JOIN(prefix, isa)

#if defined(__AVX512BF16__)
void NAME(forward_, KERNELS)(const Call& call) { KERNELS::forward<KERNELS::Bfloat16>(call); }
void NAME(backward_, KERNELS)(const Call& call) { KERNELS::backward<KERNELS::Bfloat16>(call); }
#else
#include "decoder.h"

void NAME(forward_, KERNELS)(const Call& call) { KERNELS::forward<KERNELS::Float32>(call); }
void NAME(backward_, KERNELS)(const Call& call) { KERNELS::backward<KERNELS::Float32>(call); }
void NAME(decoder_forward_, KERNELS)(const DecoderCall& call) { KERNELS::run_decoder<KERNELS::DecoderForward>(call); }
void NAME(decoder_backward_, KERNELS)(const DecoderCall& call) { KERNELS::run_decoder<KERNELS::DecoderBackward>(call); }
#endif
